{{/*
Refuses labels, annotations and quantities that the API server would refuse: by then, Helm has made a part of the objects,
and the API server's words name no value of the chart.
*/}}
{{- define "gpuagent.checks" -}}
{{- $key := "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" -}}
{{- $label := "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" -}}
{{- $quantity := "^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$" -}}
{{- with .Values -}}
{{- $labels := dict "commonLabels" .commonLabels "podLabels" .podLabels "nodeSelector" .nodeSelector -}}
{{- $_ := set $labels "mps.nodeSelector" .mps.nodeSelector -}}
{{- $_ := set $labels "scheduler.nodeSelector" .scheduler.nodeSelector -}}
{{- $_ := set $labels "scheduler.podLabels" .scheduler.podLabels -}}
{{- range $part := list "podMonitor" "serviceMonitor" "prometheusRule" "dashboard" -}}
{{- $_ := set $labels (printf "metrics.%s.labels" $part) (get $.Values.metrics $part).labels -}}
{{- end -}}
{{- range $path, $given := $labels -}}
{{- range $name, $value := $given -}}
{{- if not (regexMatch $key $name) }}{{ include "gpuagent.badKey" (dict "path" $path "name" $name) }}{{ end -}}
{{- if not (regexMatch $label $value) -}}
{{- fail (printf "%s has %s: %q, which no label can have: write at most 63 letters, digits, -, _ and ., with a letter or digit at both ends" $path $name $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $annotations := dict "annotations" .annotations "podAnnotations" .podAnnotations -}}
{{- $_ := set $annotations "scheduler.podAnnotations" .scheduler.podAnnotations -}}
{{- $_ := set $annotations "serviceAccount.annotations" .serviceAccount.annotations -}}
{{- $_ := set $annotations "scheduler.serviceAccount.annotations" .scheduler.serviceAccount.annotations -}}
{{- range $path, $given := $annotations -}}
{{- range $name, $value := $given -}}
{{- /* Of annotations, the API server takes capitals before the slash, too. */ -}}
{{- if not (regexMatch $key (lower $name)) }}{{ include "gpuagent.badKey" (dict "path" $path "name" $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $resources := dict "resources" .resources "limits.resources" .limits.resources "mps.resources" .mps.resources -}}
{{- $_ := set $resources "scheduler.resources" .scheduler.resources -}}
{{- $_ := set $resources "scheduler.kubeScheduler.resources" .scheduler.kubeScheduler.resources -}}
{{- range $path, $given := $resources -}}
{{- range $kind, $amounts := $given -}}
{{- range $name, $amount := $amounts -}}
{{- if not (regexMatch $quantity (toString $amount)) -}}
{{- fail (printf "%s.%s.%s is %q, which is not a quantity of Kubernetes: write such as 500m for half a CPU, or 256Mi for memory" $path $kind $name (toString $amount)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "gpuagent.badKey" -}}
{{- fail (printf "%s has the key %q, which no label or annotation can have: write a name of at most 63 letters, digits, -, _ and ., or example.com/NAME" .path .name) -}}
{{- end }}

{{/* Refuses a mount without its volume, and a volume with a name that is taken: the API server would refuse the DaemonSet. */}}
{{- define "gpuagent.volumeChecks" -}}
{{- $own := list "device-plugins" "pod-resources" "state" "fence" "mps" "cgroups" "limits" "no-token" "driver-libraries" "driver-programs" -}}
{{- $own = concat $own (list "dra-registration" "dra-plugin" "cdi") -}}
{{- $names := list -}}
{{- range .Values.extraVolumes -}}
{{- if has .name $own }}{{ fail (printf "extraVolumes has the name %s, which a volume of the chart has: choose another name" .name) }}{{ end -}}
{{- if has .name $names }}{{ fail (printf "extraVolumes has the name %s twice: give each volume a name of its own" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has .name $names) -}}
{{- fail (printf "extraVolumeMounts has %s at %s, and extraVolumes has no volume of that name: add {name: %s, ...} to extraVolumes" .name .mountPath .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Refuses a second release, where Helm shows the cluster. Helm would refuse it as well, because the objects of the cluster have
fixed names, but in words about ownership that say neither why nor what to do. Without a cluster, lookup finds nothing.
*/}}
{{- define "gpuagent.onlyRelease" -}}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "gpuagent" -}}
{{- $annotations := (get $role "metadata" | default dict).annotations | default dict -}}
{{- $name := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- $is_this := and (eq $name .Release.Name) (eq $namespace .Release.Namespace) -}}
{{- if and $name (not $is_this) -}}
{{- fail (printf "this cluster has the release %s of the chart in namespace %s, and two agents on a node would offer the same GPUs twice: upgrade it with `helm upgrade %s CHART --namespace %s`, or remove it first with `helm uninstall %s --namespace %s`" $name $namespace $name $namespace $name $namespace) -}}
{{- end -}}
{{- end }}
