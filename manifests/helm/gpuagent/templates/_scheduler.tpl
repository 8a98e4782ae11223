{{- define "gpuscheduler.podLabels" -}}
{{ include "gpuagent.podLabels" . }}
app.kubernetes.io/component: scheduler
{{- end }}

{{/* RBAC and the admission policies are about this account. */}}
{{- define "gpuscheduler.serviceAccount" -}}
{{- with .Values.scheduler.serviceAccount -}}
{{- if not (or .create .name) }}{{ fail "scheduler.serviceAccount.create is false, and scheduler.serviceAccount.name names no account: set the name of one that is there, or scheduler.serviceAccount.create to true" }}{{ end -}}
{{- .name | default "gpu-scheduler" -}}
{{- end -}}
{{- end }}

{{/* The part that upstream has images of: providers' versions are such as v1.31.1-aliyun.1 and v1.30.5-gke.1014001. */}}
{{- define "gpuscheduler.upstreamVersion" -}}
{{- with semver .Capabilities.KubeVersion.Version }}v{{ .Major }}.{{ .Minor }}.{{ .Patch }}{{ end -}}
{{- end }}

{{- define "gpuscheduler.kubeSchedulerImage" -}}
{{- with .Values.scheduler.kubeScheduler -}}
{{ include "gpuagent.inRegistry" (list $ .repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (include "gpuscheduler.upstreamVersion" $) }}{{ end }}
{{- end }}
{{- end }}

{{/* Of the image, as far as its tag says one: it may be older than the API server. */}}
{{- define "gpuscheduler.kubeSchedulerVersion" -}}
{{- regexFind "^v?[0-9]+\\.[0-9]+(\\.[0-9]+)?" .Values.scheduler.kubeScheduler.tag | default (include "gpuscheduler.upstreamVersion" .) -}}
{{- end }}

{{- define "gpuscheduler.kubeSchedulerConfig" -}}
{{- $version := include "gpuscheduler.kubeSchedulerVersion" . -}}
{{- $api := "v1" -}}
{{- if semverCompare "<1.25.0-0" $version }}{{ $api = "v1beta3" }}{{ end -}}
{{- if semverCompare "<1.23.0-0" $version }}{{ $api = "v1beta1" }}{{ end -}}
{{- if semverCompare "<1.19.0-0" $version }}{{ $api = "v1alpha2" }}{{ end -}}
apiVersion: kubescheduler.config.k8s.io/{{ $api }}
kind: KubeSchedulerConfiguration
{{- if has $api (list "v1alpha2" "v1beta1") }}
# Without authentication, and on all addresses by default.
healthzBindAddress: 127.0.0.1:10251
metricsBindAddress: 127.0.0.1:10251
{{- end }}
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceNamespace: {{ .Release.Namespace | quote }}
  resourceName: gpu-scheduler
podInitialBackoffSeconds: 1
# A job starts when its last pod is tried: with the default of 10 it would wait for that long.
podMaxBackoffSeconds: 2
profiles:
  - schedulerName: {{ .Values.scheduler.name | quote }}
extenders:
  - urlPrefix: http://127.0.0.1:9446
    filterVerb: filter
    bindVerb: bind
    preemptVerb: preempt
    nodeCacheCapable: true
    # While the extender is away, GPU pods wait; others are not its business.
    ignorable: false
    # Longer than a job's pods wait in bind for each other.
    httpTimeout: {{ eq $api "v1alpha2" | ternary "30000000000" "30s" }}
    managedResources:
      {{- range include "gpuscheduler.resources" . | fromJsonArray }}
      - {name: {{ . }}, ignoredByScheduler: false}
      {{- end }}
      # It gives a pod no GPU; gpuscheduler refuses such a pod and says what to ask for.
      - {name: aliyun.com/gpu-count, ignoredByScheduler: false}
  {{- if or .Values.scheduler.scorePodsWithoutGpus .Values.dra.enabled }}
  # Of all pods. While the extender is away, kube-scheduler goes by its own scores.
  - urlPrefix: http://127.0.0.1:9446
    {{- if .Values.scheduler.scorePodsWithoutGpus }}
    prioritizeVerb: prioritize
    {{- else }}
    prioritizeVerb: prioritize-claims
    {{- end }}
    weight: 10
    nodeCacheCapable: true
    ignorable: true
    httpTimeout: {{ eq $api "v1alpha2" | ternary "1000000000" "1s" }}
  {{- end }}
{{- end }}

{{- define "gpuscheduler.resources" -}}
["aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu"]
{{- end }}

{{- define "gpuscheduler.settings" -}}
{{- $own := dict "lease" (printf "%s/gpu-scheduler" .Release.Namespace) "scheduler-name" .Values.scheduler.name -}}
{{- if .Values.scheduler.placeholders }}{{ $_ := set $own "placeholder-namespace" .Release.Namespace }}{{ end }}
{{- if not (hasKey .Values.scheduler.settings "agent-namespace") }}{{ $_ := set $own "agent-namespace" .Release.Namespace }}{{ end }}
{{- with include "gpuagent.runbook" . }}{{ $_ := set $own "problems-url" . }}{{ end }}
{{- range $name, $value := merge $own .Values.scheduler.settings }}
{{- $text := kindIs "string" $value | ternary $value (toJson $value) }}
- {{ printf "--%s=%s" $name $text | replace "$" "$$" | quote }}
{{- end }}
{{- end }}

{{/* Not empty if a setting has the scheduler evict pods: it gets the right only then. */}}
{{- define "gpuscheduler.evicts" -}}
{{- range list "job-evict-broken" "defragment-moves" -}}
{{- $value := get $.Values.scheduler.settings . -}}
{{- if and $value (ne (toString $value) "off") -}}{{ . }} {{ end -}}
{{- end -}}
{{- end }}

{{/* Not empty if it moves pods: then it reads PodDisruptionBudgets. */}}
{{- define "gpuscheduler.defragments" -}}
{{- if contains "defragment-moves" (include "gpuscheduler.evicts" .) }}true{{ end -}}
{{- end }}

{{- define "gpuscheduler.refusals" -}}
{{- /* With one account, each agent would have the scheduler's rights, and the policies of both would refuse all writes. */ -}}
{{- if .Values.scheduler.enabled -}}
{{- $account := include "gpuscheduler.serviceAccount" . -}}
{{- if eq $account (include "gpuagent.serviceAccount" .) -}}
{{- fail (printf "scheduler.serviceAccount.name is %s, the account of the agents, which would get the scheduler's rights: choose another name" $account) -}}
{{- end -}}
{{- end -}}
{{- /* Without the scheduler the value has no effect: scheduler.enabled=false alone removes both, also with --reuse-values. */ -}}
{{- if and .Values.scheduler.enabled .Values.scheduler.setSchedulerName -}}
{{- if semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "scheduler.setSchedulerName needs Kubernetes 1.36, the first with MutatingAdmissionPolicies by default, and Kubernetes is %s: set it to false, and spec.schedulerName: %s in your pods" .Capabilities.KubeVersion.Version .Values.scheduler.name) -}}
{{- end -}}
{{- end -}}
{{- end }}
