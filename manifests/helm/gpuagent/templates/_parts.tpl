{{/*
One agent a node: the names of the cluster's objects are fixed, so Helm refuses a second release. What an operator renames
is the DaemonSet, and its service account with it. The labels stay: kubectl inspect cgpu and monitors find pods by them.
*/}}
{{- define "gpuagent.name" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default "gpuagent" -}}
{{- end }}

{{/* RBAC and the admission policies are about this account. */}}
{{- define "gpuagent.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{- if not (or .create .name) }}{{ fail "serviceAccount.create is false, and serviceAccount.name names no account: set the name of one that is there, or serviceAccount.create to true" }}{{ end -}}
{{- .name | default (include "gpuagent.name" $) -}}
{{- end -}}
{{- end }}

{{/* As the API server names that account in requests. */}}
{{- define "gpuagent.user" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "gpuagent.serviceAccount" .) -}}
{{- end }}

{{- define "gpuagent.labels" -}}
{{- if hasKey .Values.commonLabels "app.kubernetes.io/component" -}}
{{- fail "commonLabels may not set app.kubernetes.io/component: it is a label of the chart's own" -}}
{{- end -}}
{{- include "gpuagent.withLabels" (dict "own" (include "gpuagent.ownLabels" .) "more" .Values.commonLabels "value" "commonLabels") -}}
{{- end }}

{{- define "gpuagent.ownLabels" -}}
app.kubernetes.io/name: gpuagent
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Without versions: a pod is replaced only where something of it changes. */}}
{{- define "gpuagent.podLabels" -}}
app.kubernetes.io/name: gpuagent
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels of the chart, and more of the operator's: with one of them twice, it would be the reader's choice which holds. */}}
{{- define "gpuagent.withLabels" -}}
{{- $own := fromYaml .own -}}
{{- range $key := keys .more | sortAlpha -}}
{{- if hasKey $own $key }}{{ fail (printf "%s may not set %s: it is a label of the chart's own" $.value $key) }}{{ end -}}
{{- end -}}
{{ .own }}
{{- with .more }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of image.pullSecrets, and of imagePullSecrets as a pod has them, also of those for all charts. */}}
{{- define "gpuagent.pullSecrets" -}}
{{- $names := .Values.image.pullSecrets -}}
{{- range concat .Values.imagePullSecrets ((.Values.global | default dict).imagePullSecrets | default list) -}}
{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end -}}
{{- end -}}
{{- with uniq $names }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "gpuagent.image" -}}
{{- with .Values.image -}}
{{- if not .repository }}{{ fail "image.repository is not set, and no registry has a public image yet: build one with `make image IMAGE=REGISTRY/gpuagent:VERSION`, push it, and set image.repository to REGISTRY/gpuagent" }}{{ end -}}
{{ include "gpuagent.inRegistry" (list $ .repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/*
A reference of an image, in the registry of global.imageRegistry if a chart above this one sets it. As for the container
runtime, the part before the first slash is a registry if it has a dot or a port, or is localhost.
*/}}
{{- define "gpuagent.inRegistry" -}}
{{- $reference := index . 1 -}}
{{- $registry := ((index . 0).Values.global | default dict).imageRegistry -}}
{{- if $registry -}}
{{- $rest := regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $reference "" -}}
{{- trimSuffix "/" $registry }}/{{ $rest -}}
{{- else -}}
{{- $reference -}}
{{- end -}}
{{- end }}

{{/*
The agent's settings as arguments: what the chart decides, and what the operator set. They are in the pod's template, so
a pod that starts again amid an upgrade, or after one that failed, has the settings that it was made with.
*/}}
{{- define "gpuagent.settings" -}}
{{- $own := dict "http-address" (printf ":%v" (int .Values.http.port)) "kubelet-dir" .Values.paths.kubelet "state-dir" .Values.paths.state -}}
{{- /* A daemon in the agent's container would end with it, and its clients with the daemon. */ -}}
{{- $_ := set $own "mps-start" false -}}
{{- if .Values.mps.enabled }}{{ $_ := set $own "mps-pipe-dir" .Values.mps.directory }}{{ end -}}
{{- if .Values.dra.enabled }}{{ $_ := set $own "cdi-dir" .Values.paths.cdi }}{{ end -}}
{{- if not (include "gpuagent.annotates" .) }}{{ $_ := set $own "annotate-pods" false }}{{ end -}}
{{- if include "gpuagent.resizes" . }}{{ $_ := set $own "live-resize" true }}{{ end -}}
{{- if .Values.idlePolicy }}{{ $_ := set $own "idle-policy" true }}{{ end -}}
{{- if .Values.startupTaint }}{{ $_ := set $own "startup-taint" .Values.startupTaint }}{{ end -}}
{{- range $name, $value := merge $own .Values.settings }}
{{- $text := kindIs "string" $value | ternary $value (toJson $value) }}
{{- /* Kubelet expands $(NAME). */}}
- {{ printf "--%s=%s" $name $text | replace "$" "$$" | quote }}
{{- end }}
{{- end }}

{{- define "gpuagent.policed" -}}
{{- $enabled := .Values.admissionPolicy.enabled -}}
{{- if eq (toString $enabled) "auto" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- else if $enabled }}yes{{ end -}}
{{- end }}

{{/* Kubernetes 1.19 was the first with seccomp as a field. In 1.18 it is an annotation of the pod. */}}
{{- define "gpuagent.seccomp" -}}
{{- if semverCompare ">=1.19.0-0" .Capabilities.KubeVersion.Version }}seccompProfile: {type: RuntimeDefault}{{ end -}}
{{- end }}

{{/* Kubernetes 1.22 was the first with a surge of DaemonSets by default. Before, there is none to switch off. */}}
{{- define "gpuagent.rollingUpdate" -}}
{{- $surge := ternary (dict "maxSurge" 0) (dict) (semverCompare ">=1.22.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $given := .Values.updateStrategy.rollingUpdate | default dict -}}
{{- merge $surge $given (dict "maxUnavailable" .Values.updateStrategy.maxUnavailable) | toJson -}}
{{- end }}

{{/* RBAC gives this right on every pod, and only the policies narrow it to the agent's node: auto follows those. */}}
{{- define "gpuagent.annotates" -}}
{{- if eq (toString .Values.rbac.podAnnotations) "auto" }}{{ include "gpuagent.policed" . }}{{ else if .Values.rbac.podAnnotations }}yes{{ end -}}
{{- end }}

{{/* The agent obeys the annotation only where a policy keeps tenants from it, and where it can write what became of it. */}}
{{- define "gpuagent.resizes" -}}
{{- if and .Values.liveResize (include "gpuagent.policed" .) (include "gpuagent.annotates" .) }}yes{{ end -}}
{{- end }}

{{/* Also to have kubelet prepare a claim again, and nothing more than that where rbac.podAnnotations is false. */}}
{{- define "gpuagent.patchesPods" -}}
{{- if or (include "gpuagent.annotates" .) (and .Values.dra.enabled (include "gpuagent.policed" .)) }}yes{{ end -}}
{{- end }}

{{/* Of the release's pods, as a list. */}}
{{- define "gpuagent.priorityClasses" -}}
{{- list .Values.priorityClassName (.Values.scheduler.enabled | ternary .Values.scheduler.priorityClassName "") | compact | uniq | toJson -}}
{{- end }}

{{- define "gpuagent.fenceDir" -}}
{{- $file := get .Values.settings "fence-file" | default "/etc/nvidia-device-plugin/unhealthyDevices.json" -}}
{{- /* The state directory is mounted already. */ -}}
{{- if and (ne $file "off") (ne (dir $file) (clean .Values.paths.state)) }}{{ dir $file }}{{ end -}}
{{- end }}

{{/* Directories of mode dra, by the name of the volume. */}}
{{- define "gpuagent.draPaths" -}}
{{- $paths := dict -}}
{{- if .Values.dra.enabled -}}
{{- $_ := set $paths "dra-registration" (printf "%s/plugins_registry" .Values.paths.kubelet) -}}
{{- $_ := set $paths "dra-plugin" (printf "%s/plugins/gpu.gpuagent.io" .Values.paths.kubelet) -}}
{{- $_ := set $paths "cdi" .Values.paths.cdi -}}
{{- end -}}
{{- toJson $paths -}}
{{- end }}

{{/* Two mounts at one path: the API server refuses a new DaemonSet with them, and merges them in one that is there. */}}
{{- define "gpuagent.distinctMounts" -}}
{{- $paths := list (printf "%s/device-plugins" .Values.paths.kubelet) (printf "%s/pod-resources" .Values.paths.kubelet) .Values.paths.state -}}
{{- with include "gpuagent.fenceDir" . }}{{ $paths = append $paths . }}{{ end -}}
{{- if .Values.mps.enabled }}{{ $paths = append $paths .Values.mps.directory }}{{ end -}}
{{- if .Values.limits.enabled }}{{ $paths = concat $paths (list "/sys/fs/cgroup" "/run/gpuagent-limits") }}{{ end -}}
{{- range include "gpuagent.draPaths" . | fromJson }}{{ $paths = append $paths . }}{{ end -}}
{{- range .Values.extraVolumeMounts }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- $clean := list -}}
{{- range $paths }}{{ $clean = append $clean (clean .) }}{{ end -}}
{{- if ne (len (uniq $clean)) (len $clean) -}}
{{- fail (printf "two folders of the agent's pod are the same: paths.kubelet, paths.state, paths.cdi, the folder of settings.fence-file, mps.directory and extraVolumeMounts have to differ (%s)" (join ", " $clean)) -}}
{{- end -}}
{{- end }}

{{/* What the schema cannot say. */}}
{{- define "gpuagent.refusals" -}}
{{- include "gpuagent.onlyRelease" . -}}
{{- include "gpuagent.checks" . -}}
{{- include "gpuagent.volumeChecks" . -}}
{{- /* Names of the chart's other objects. An agent that shared the scheduler's account would have its rights. */ -}}
{{- $taken := list "cgpu-installer" "gpu-decisions" "gpu-mem-limits" "gpu-memory-limits" "gpu-scheduler" "mps-control" -}}
{{- if has (include "gpuagent.name" .) $taken -}}
{{- fail (printf "fullnameOverride or nameOverride is %s, the name of another object of the chart: choose another name" (include "gpuagent.name" .)) -}}
{{- end -}}
{{- if has (include "gpuagent.serviceAccount" .) $taken -}}
{{- fail (printf "serviceAccount.name is %s, the name of another object of the chart: the agents would have its rights; choose another name" (include "gpuagent.serviceAccount" .)) -}}
{{- end -}}
{{- if regexMatch ":[A-Za-z0-9_][A-Za-z0-9_.-]*$|@" .Values.image.repository -}}
{{- fail (printf "image.repository is %s: leave out the tag, and set image.tag or image.digest" .Values.image.repository) -}}
{{- end -}}
{{- $fatal := list -}}
{{- range compact (splitList "," (get .Values.settings "fatal-xids")) }}{{ $fatal = append $fatal (trim . | atoi) }}{{ end -}}
{{- range compact (splitList "," (get .Values.settings "ignore-xids")) -}}
{{- if has (trim . | atoi) $fatal -}}
{{- fail (printf "settings.ignore-xids and settings.fatal-xids both name XID %s: leave it in one of them" (trim .)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (get .Values.settings "device-strategy") "cdi") (semverCompare "<1.28.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "settings.device-strategy=cdi needs Kubernetes 1.28: kubelets before hand no CDI names on, and Kubernetes is %s; leave it at device-nodes" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if .Values.dra.enabled -}}
{{- if semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "dra.enabled needs Kubernetes 1.34, the first with resource.k8s.io/v1, and Kubernetes is %s: set it to false" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.scheduler.enabled .Values.scheduler.setSchedulerName (has .Values.dra.extendedResource (include "gpuscheduler.resources" . | fromJsonArray)) -}}
{{- fail (printf "scheduler.setSchedulerName gives pods that ask for %s to the scheduler %s, which places none on nodes in mode dra: set dra.extendedResource to \"\", or scheduler.setSchedulerName to false" .Values.dra.extendedResource .Values.scheduler.name) -}}
{{- end -}}
{{- else if .Values.dra.extendedResource -}}
{{- fail "dra.extendedResource needs dra.enabled: without it no DeviceClass is there to have that name; set dra.enabled to true, or dra.extendedResource to \"\"" -}}
{{- end -}}
{{- if and .Values.driver.createRuntimeClass (not .Values.driver.runtimeClassName) -}}
{{- fail "driver.createRuntimeClass needs driver.runtimeClassName: set it to the handler's name in the container runtime, such as nvidia" -}}
{{- end -}}
{{- if and (get .Values.settings "annotate-pods") (not (include "gpuagent.annotates" .)) -}}
{{- fail "settings.annotate-pods needs the right to patch pods: set rbac.podAnnotations to true, or leave settings.annotate-pods out" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.hostNetwork -}}
{{- fail "networkPolicy.enabled has no effect on pods that use the node's network: set hostNetwork or networkPolicy.enabled to false" -}}
{{- end -}}
{{- with .Values.mps }}
{{- if and .exclusive (not (and .enabled .daemon)) -}}
{{- fail "mps.exclusive needs mps.enabled and mps.daemon: the chart's daemon is what sets the compute mode; set both to true, or mps.exclusive to false" -}}
{{- end -}}
{{- if and .exclusive (not .nodeSelector) -}}
{{- fail "mps.exclusive needs mps.nodeSelector: on the daemon's nodes it keeps containers without MPS from sharing a GPU; set mps.nodeSelector to a label of the nodes that are for MPS alone, or mps.exclusive to false" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Nodes that have one of the labels, and all of the selector. */}}
{{- define "gpuagent.nodes" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $ofNodes := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $ofNodes "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- /* A node needs one of the terms. So each of the operator's terms comes with each label. */ -}}
{{- $terms := list -}}
{{- range $label := .Values.nodeLabels -}}
{{- range $term := get $required "nodeSelectorTerms" | default (list dict) -}}
{{- $served := concat (list (dict "key" $label "operator" "Exists")) $.Values.nodeAffinity (get $term "matchExpressions" | default list) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $served) $term) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $ofNodes "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $ofNodes }}
affinity:
  {{- toYaml $affinity | nindent 2 }}
{{- end }}

{{- define "gpuagent.pod" -}}
{{- with include "gpuagent.pullSecrets" . | trim }}
{{ . }}
{{- end }}
enableServiceLinks: false
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- $tolerations := .Values.tolerations | default list }}
{{- if and .Values.startupTaint (not (has (dict "operator" "Exists") $tolerations)) }}
{{- /* The agent takes that taint off. */ -}}
{{- $tolerations = append $tolerations (dict "key" .Values.startupTaint "operator" "Exists") }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How the driver gets into a container: by NVIDIA's runtime, or from folders of the host. */}}
{{- define "gpuagent.driverEnv" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: {{ .Values.driver.capabilities | quote }}}
{{- if .Values.driver.libraries }}
- {name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}
{{- end }}
{{- end }}

{{- define "gpuagent.driverMounts" -}}
{{- if .Values.driver.libraries }}
- {name: driver-libraries, mountPath: /usr/local/nvidia/lib64, readOnly: true}
{{- end }}
{{- if .Values.driver.programs }}
- {name: driver-programs, mountPath: /usr/local/nvidia/bin, readOnly: true}
{{- end }}
{{- end }}

{{- define "gpuagent.driverVolumes" -}}
{{- with .Values.driver.libraries }}
- {name: driver-libraries, hostPath: {path: {{ . | quote }}, type: Directory}}
{{- end }}
{{- with .Values.driver.programs }}
- {name: driver-programs, hostPath: {path: {{ . | quote }}, type: Directory}}
{{- end }}
{{- end }}

{{/* Address of docs/problems.md: the operator's copy of the page, or the repository of a release. Empty if there is neither. */}}
{{- define "gpuagent.runbook" -}}
{{- if .Values.metrics.prometheusRule.runbookUrl }}{{ .Values.metrics.prometheusRule.runbookUrl }}
{{- else if .Chart.Home }}{{ printf "%s/blob/v%s/docs/problems.md" .Chart.Home .Chart.Version }}{{ end -}}
{{- end }}

{{/*
Alert rules, each with the address of its section. Without one, the path in the repository is no URL, and is not called one.
Their commands look where the release is.
*/}}
{{- define "gpuagent.rules" -}}
{{- $rules := .root.Files.Get (printf "monitoring/%s" .file) | trim -}}
{{- $rules = $rules | replace "kubectl -n kube-system " (printf "kubectl -n %s " .root.Release.Namespace) -}}
{{- with include "gpuagent.runbook" .root }}{{ $rules | replace "docs/problems.md#" (printf "%s#" .) -}}
{{- else }}{{ $rules | replace "runbook_url: " "runbook: " }}{{ end -}}
{{- end }}

{{/* A dashboard, with a link to the page of problems if its address is known. */}}
{{- define "gpuagent.dashboard" -}}
{{- $links := list -}}
{{- with include "gpuagent.runbook" .root }}
{{- $links = list (dict "title" "Runbook" "type" "link" "icon" "doc" "url" . "targetBlank" true) -}}
{{- end -}}
{{- .root.Files.Get (printf "monitoring/%s" .file) | trim | replace "\n \"links\": []," (printf "\n \"links\": %s," (toJson $links)) -}}
{{- end }}
