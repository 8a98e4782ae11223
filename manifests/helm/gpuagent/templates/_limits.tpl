{{/* Memory limits of the NVIDIA driver: the privileged part of the agent's pod, and what both containers see for it. */}}

{{/* Environment of the agent and of its helper. A node may have cgroups of several kubelets: the one with this pod counts. */}}
{{- define "gpuagent.limits.env" -}}
{{- if .Values.limits.enabled -}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- end }}
{{- end }}

{{/* The helper's own container, so that the agent needs no capability. It has no token and no directory of kubelet's. */}}
{{- define "gpuagent.limits.container" -}}
- name: memory-limits
  image: {{ include "gpuagent.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [gpuagent, memory-limits]
  {{- $arguments := list -}}
  {{- with .Values.limits.podsCgroup }}{{ $arguments = append $arguments (printf "--pods-cgroup=%s" .) }}{{ end -}}
  {{- /* On a simulated box, its limits are simulated as well. */ -}}
  {{- with get .Values.settings "simulate" }}{{ $arguments = append $arguments (printf "--simulate=%s" .) }}{{ end -}}
  {{- with $arguments }}
  args: {{ toJson . | replace "$" "$$" }}
  {{- end }}
  env:
    {{- include "gpuagent.limits.env" . | nindent 4 }}
    {{- include "gpuagent.driverEnv" . | trim | nindent 4 }}
  # Its socket answers. A node whose driver has no limits is healthy: the helper says so to the agent.
  livenessProbe:
    exec: {command: [gpuagent, memory-limits, --check]}
    initialDelaySeconds: 10
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 3
  resources: {{- toYaml .Values.limits.resources | nindent 4 }}
  securityContext:
    readOnlyRootFilesystem: true
    {{- if .Values.driver.privileged }}
    privileged: true
    {{- else }}
    privileged: false
    allowPrivilegeEscalation: false
    # The driver takes limits from an administrator of the host only. The second is for nodes whose CPUs are full: without
    # it, the helper may reach a new container later than the container's first instruction.
    capabilities: {drop: [ALL], add: [SYS_ADMIN, SYS_NICE]}
    {{- end }}
  volumeMounts:
    - {name: cgroups, mountPath: /sys/fs/cgroup}
    - {name: limits, mountPath: /run/gpuagent-limits}
    # Of the pod's service account, whose token this container does not need.
    - {name: no-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- with include "gpuagent.driverMounts" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
