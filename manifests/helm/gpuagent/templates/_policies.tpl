{{/* What the agent may write, one policy for each kind of object; the names are those of the agent's code. */}}

{{- define "gpuagent.policy.claim" -}}
- expression: variables.node != ''
  message: >-
    the token of service account {{ include "gpuagent.serviceAccount" . }} names no node: it has to be that of the agent's pod, as kubelet mounts it
{{- end }}

{{- define "gpuagent.policy.annotations" }}
- name: oldAnnotations
  expression: "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
- name: newAnnotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
{{- end }}

{{- define "gpuagent.policy.nodes" -}}
- name: oldLabels
  expression: "has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"
- name: newLabels
  expression: "has(object.metadata.labels) ? object.metadata.labels : {}"
- name: ownLabels
  expression: "['aliyun.accelerator/nvidia_name', 'aliyun.accelerator/nvidia_mem', 'aliyun.accelerator/nvidia_count']"
{{- include "gpuagent.policy.annotations" . }}
- name: oldTaints
  expression: "has(oldObject.spec.taints) ? oldObject.spec.taints : []"
- name: newTaints
  expression: "has(object.spec.taints) ? object.spec.taints : []"
validations:
  {{- include "gpuagent.policy.claim" . | nindent 2 }}
  - expression: request.operation == 'UPDATE' && object.metadata.name == variables.node
    messageExpression: >-
      'the agent of node "' + variables.node + '" may change its own node only, not "' + variables.target + '"'
  - expression: variables.part in ['', 'status']
    message: the agent may change a node and its status only
  - expression: >-
      variables.newLabels.all(key, key in variables.ownLabels
      || (key in variables.oldLabels && variables.oldLabels[key] == variables.newLabels[key]))
      && variables.oldLabels.all(key, key in variables.ownLabels || key in variables.newLabels)
    message: the agent may change the labels aliyun.accelerator/nvidia_name, nvidia_mem and nvidia_count only
  - expression: >-
      variables.newAnnotations.all(key,
      key == 'gpuagent.io/gpus' && size(variables.newAnnotations[key]) <= 4096
      || key == 'gpuagent.io/held' && size(variables.newAnnotations[key]) <= 32768
      || key == 'gpuagent.io/known-gpus' && size(variables.newAnnotations[key]) <= 8192
      || (key in variables.oldAnnotations && variables.oldAnnotations[key] == variables.newAnnotations[key]))
      && variables.oldAnnotations.all(key, key in variables.newAnnotations)
    message: >-
      the agent may set only the annotations gpuagent.io/gpus, to at most 4096 characters, gpuagent.io/known-gpus, to at
      most 8192, and gpuagent.io/held, to at most 32768
  - expression: >-
      has(object.metadata.finalizers) == has(oldObject.metadata.finalizers)
      && (!has(object.metadata.finalizers) || object.metadata.finalizers == oldObject.metadata.finalizers)
      && has(object.metadata.ownerReferences) == has(oldObject.metadata.ownerReferences)
      && (!has(object.metadata.ownerReferences) || object.metadata.ownerReferences == oldObject.metadata.ownerReferences)
      && has(object.metadata.generateName) == has(oldObject.metadata.generateName)
      && (!has(object.metadata.generateName) || object.metadata.generateName == oldObject.metadata.generateName)
    message: the agent may not change a node's finalizers, owners and generateName
  - expression: >-
      (has(object.spec.unschedulable) && object.spec.unschedulable)
      == (has(oldObject.spec.unschedulable) && oldObject.spec.unschedulable)
      && (has(object.spec.providerID) ? object.spec.providerID : '')
      == (has(oldObject.spec.providerID) ? oldObject.spec.providerID : '')
      && (has(object.spec.podCIDRs) ? object.spec.podCIDRs : [])
      == (has(oldObject.spec.podCIDRs) ? oldObject.spec.podCIDRs : [])
      && has(object.spec.configSource) == has(oldObject.spec.configSource)
    message: the agent may not change a node's spec
  - expression: >-
      variables.newTaints.all(taint, taint in variables.oldTaints)
      && variables.oldTaints.all(taint, taint in variables.newTaints
      {{- with .Values.startupTaint }} || taint.key == {{ squote . }}{{ end }})
    message: the agent may {{ with .Values.startupTaint }}take off the taint {{ . }} only{{ else }}not change taints{{ end }}
  {{- range $amounts := list "capacity" "allocatable" }}
  - expression: >-
      !has(object.status.{{ $amounts }}) && !has(oldObject.status.{{ $amounts }})
      || has(object.status.{{ $amounts }})
      && object.status.{{ $amounts }}.all(name, name == 'aliyun.com/gpu-count'
      || has(oldObject.status.{{ $amounts }}) && name in oldObject.status.{{ $amounts }}
      && oldObject.status.{{ $amounts }}[name] == object.status.{{ $amounts }}[name])
      && (!has(oldObject.status.{{ $amounts }})
      || oldObject.status.{{ $amounts }}.all(name, name == 'aliyun.com/gpu-count' || name in object.status.{{ $amounts }}))
    message: the agent may change the amount aliyun.com/gpu-count only
  {{- end }}
  - expression: >-
      (has(object.status.conditions) ? object.status.conditions.filter(one, one.type != 'GPUAgentReady') : [])
      == (has(oldObject.status.conditions)
      ? oldObject.status.conditions.filter(one, one.type != 'GPUAgentReady') : [])
    message: the agent may change the condition GPUAgentReady only
  - expression: >-
      {{- range $n, $field := list "addresses" "daemonEndpoints" "nodeInfo" "images" "volumesAttached" "volumesInUse" "phase" "config" "runtimeHandlers" "features" "declaredFeatures" }}
      {{ if $n }}&& {{ end }}has(object.status.{{ $field }}) == has(oldObject.status.{{ $field }})
      && (!has(object.status.{{ $field }}) || object.status.{{ $field }} == oldObject.status.{{ $field }})
      {{- end }}
    message: the agent may not change what kubelet says of the node
{{- end }}

{{/* The annotations that say which GPUs a pod has. */}}
{{- define "gpuagent.decisions" -}}
'scheduler.framework.gpushare.allocation', 'gpushare.alibabacloud.com/core-percentage',
'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_POD', 'ALIYUN_COM_GPU_MEM_DEV', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME',
'ALIYUN_COM_GPU_MEM_ASSIGNED', 'topology.kubernetes.io/gpu-group', 'topology.kubernetes.io/gpu-visible',
'gpuagent.io/decided'
{{- end }}

{{- define "gpuagent.policy.pods" -}}
{{- include "gpuagent.policy.annotations" . }}
{{- $dra := .Values.dra.enabled }}
{{- $shows := or (include "gpuagent.annotates" .) (not $dra) }}
- name: ownAnnotations
  expression: >-
    [{{ if $dra }}'gpuagent.io/prepare-again'{{ if $shows }},
    {{ end }}{{ end }}{{ if $shows }}{{ include "gpuagent.decisions" . | trim | nindent 4 | trim }}{{ end }}
    {{- if include "gpuagent.resizes" . }}, 'gpuagent.io/gpu-mem-limit-status'{{ end }}]
{{- if .Values.idlePolicy }}
# The object of an eviction has no node, so the namespace has to allow it.
- name: evicts
  expression: >-
    request.operation == 'CREATE' && variables.part == 'eviction'
    && has(namespaceObject.metadata.labels) && 'gpuagent.io/when-idle' in namespaceObject.metadata.labels
    && namespaceObject.metadata.labels['gpuagent.io/when-idle'].startsWith('evict-after-')
{{- end }}
validations:
  {{- include "gpuagent.policy.claim" . | nindent 2 }}
  {{- if include "gpuagent.patchesPods" . }}
  - expression: request.operation == 'UPDATE' && variables.part == ''{{ if .Values.idlePolicy }} || variables.evicts{{ end }}
    message: the agent may annotate pods{{ if .Values.idlePolicy }}, evict them where their namespace says so{{ end }}, and do nothing else to pods
  {{- else if .Values.idlePolicy }}
  - expression: variables.evicts
    message: the agent may evict pods where their namespace says so, and do nothing else to pods
  {{- else }}
  - expression: "false"
    message: the agent may not write pods
  {{- end }}
  - expression: >-
      request.operation != 'UPDATE'
      || has(oldObject.spec.nodeName) && oldObject.spec.nodeName == variables.node
    messageExpression: >-
      'the agent of node "' + variables.node + '" may not touch pod "' + variables.target + '" of another node'
  - expression: >-
      request.operation != 'UPDATE'
      || object.spec == oldObject.spec
      && (has(object.metadata.labels) ? object.metadata.labels : {})
      == (has(oldObject.metadata.labels) ? oldObject.metadata.labels : {})
      && (has(object.metadata.finalizers) ? object.metadata.finalizers : [])
      == (has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : [])
      && has(object.metadata.ownerReferences) == has(oldObject.metadata.ownerReferences)
      && (!has(object.metadata.ownerReferences) || object.metadata.ownerReferences == oldObject.metadata.ownerReferences)
      && has(object.metadata.generateName) == has(oldObject.metadata.generateName)
      && (!has(object.metadata.generateName) || object.metadata.generateName == oldObject.metadata.generateName)
    message: the agent may change a pod's annotations only
  - expression: >-
      request.operation != 'UPDATE'
      || variables.newAnnotations.all(key,
      key in variables.ownAnnotations && size(variables.newAnnotations[key]) <= 32768
      || (key in variables.oldAnnotations && variables.oldAnnotations[key] == variables.newAnnotations[key]))
      && variables.oldAnnotations.all(key, key in variables.newAnnotations)
    message: >-
      the agent may set only the annotations that say which GPUs a pod has, of at most 32768 characters each
{{- end }}

{{- define "gpuagent.policy.events" -}}
- name: writes
  expression: request.operation in ['CREATE', 'UPDATE']
- name: reasons
  expression: >-
    {{- include "gpuagent.reasons" . | nindent 4 }}
validations:
  {{- include "gpuagent.policy.claim" . | nindent 2 }}
  - expression: variables.writes && variables.part == ''
    message: the agent may make Events and count them, and do nothing else to them
  - expression: >-
      !variables.writes
      || has(object.involvedObject) && has(object.source.host) && object.source.host == variables.node
      && has(object.source.component) && object.source.component == 'gpuagent'
      && has(object.reportingComponent) && object.reportingComponent == 'gpuagent'
      && has(object.reportingInstance) && object.reportingInstance == variables.node
    messageExpression: >-
      'the agent of node "' + variables.node + '" may send Events in its own name only'
  - expression: >-
      request.operation != 'UPDATE'
      || has(oldObject.source.host) && oldObject.source.host == variables.node
      && has(oldObject.reportingComponent) && oldObject.reportingComponent == 'gpuagent'
      && oldObject.involvedObject == object.involvedObject
    messageExpression: >-
      'the agent of node "' + variables.node + '" may change its own Events only'
  - expression: "!variables.writes || has(object.reason) && object.reason in variables.reasons"
    message: the agent may send Events with the reasons of its own list only
  # The agent cuts its messages to so many characters; the API server does not bound the other texts.
  - expression: >-
      !variables.writes
      || (!has(object.message) || size(object.message) <= 1024)
      && (!has(object.type) || object.type in ['Normal', 'Warning'])
      && (!has(object.involvedObject.name) || size(object.involvedObject.name) <= 253)
      && (!has(object.involvedObject.uid) || size(object.involvedObject.uid) <= 253)
      && (!has(object.involvedObject.apiVersion) || size(object.involvedObject.apiVersion) <= 253)
    message: the agent may send Events with messages of at most 1024 characters, and names of at most 253
  - expression: >-
      !variables.writes
      || !has(object.metadata.labels) && !has(object.metadata.annotations) && !has(object.metadata.finalizers)
      && !has(object.metadata.ownerReferences) && !has(object.metadata.generateName)
      && !has(object.action) && !has(object.related) && !has(object.series)
      && !has(object.involvedObject.fieldPath) && !has(object.involvedObject.resourceVersion)
    message: the agent may set only the fields of an Event that it needs
  - expression: >-
      !variables.writes
      || has(object.involvedObject.kind) && has(object.involvedObject.name)
      && (object.involvedObject.kind == 'Node' && object.involvedObject.name == variables.node
      || object.involvedObject.kind == 'Pod')
    messageExpression: >-
      'the agent may send Events about node "' + variables.node + '" and about pods only'
{{- end }}

{{- define "gpuagent.policy.configmaps" -}}
- name: name
  expression: "(request.operation == 'DELETE' ? oldObject : object).metadata.name"
validations:
  {{- include "gpuagent.policy.claim" . | nindent 2 }}
  - expression: >-
      variables.place == 'kube-system'
      && variables.name in ['unhealthy-gpu-' + variables.node, variables.node + '-gputopo-report']
    messageExpression: >-
      'the agent of node "' + variables.node + '" may write its own reports only, not ConfigMap "'
      + variables.place + '/' + variables.name + '"'
{{- end }}

{{- define "gpuagent.policy.resourceslices" -}}
- name: name
  expression: "(request.operation == 'DELETE' ? oldObject : object).metadata.name"
validations:
  {{- include "gpuagent.policy.claim" . | nindent 2 }}
  - expression: >-
      variables.part == '' && (variables.name == variables.node + '-gpu.gpuagent.io'
      || variables.name.startsWith(variables.node + '-gpu.gpuagent.io-'))
      {{- range $one := list "object" "oldObject" }}
      && ({{ $one }} == null || {{ $one }}.spec.driver == 'gpu.gpuagent.io' && {{ $one }}.spec.pool.name == variables.node
      && has({{ $one }}.spec.nodeName) && {{ $one }}.spec.nodeName == variables.node)
      {{- end }}
    messageExpression: >-
      'the agent of node "' + variables.node + '" may write the ResourceSlice of its own node and driver only, not "'
      + variables.name + '"'
  - expression: >-
      object == null
      {{- range $n, $field := list "labels" "annotations" "finalizers" "generateName" }}
      {{ if $n }}&&{{ else }}||{{ end }} (!has(object.metadata.{{ $field }}) || oldObject != null
      && has(oldObject.metadata.{{ $field }}) && oldObject.metadata.{{ $field }} == object.metadata.{{ $field }})
      {{- end }}
      && (!has(object.metadata.ownerReferences)
      || object.metadata.ownerReferences.all(one, one.kind == 'Node' && one.name == variables.node))
    message: the agent may set only the name and the owner of a ResourceSlice, which is its node, and no other metadata
{{- end }}

{{- define "gpuagent.policy.claims" -}}
{{- $memory := "one.?capacity.?requests.?memory.hasValue()" }}
{{- $cores := "one.?capacity.?requests.?cores.hasValue()" }}
{{- $sharers := "one.?capacity.?requests.?sharers.hasValue()" -}}
validations:
  - expression: {{ include "gpuagent.policy.everyRequest" (printf "one.deviceClassName != 'gpu-core.gpuagent.io'\n|| %s && %s" $memory $cores) }}
    message: >-
      class gpu-core.gpuagent.io isolates memory and compute: capacity.requests has to name both memory and cores. If it
      does, the API server has dropped them because its feature gate DRAConsumableCapacity is off; then claims get
      whole GPUs only, of class gpu.gpuagent.io
  - expression: {{ include "gpuagent.policy.everyRequest" (printf "one.deviceClassName != 'gpu.gpuagent.io'\n|| !%s && !%s" $memory $cores) }}
    message: >-
      class gpu.gpuagent.io gives whole GPUs: name neither memory nor cores, or use gpu-share.gpuagent.io for a share
  - expression: {{ include "gpuagent.policy.everyRequest" (printf "!(one.deviceClassName in ['gpu-share.gpuagent.io', 'gpu-isolated.gpuagent.io'])\n|| %s || !%s" $memory $cores) }}
    message: >-
      a request for cores has to name memory, too: without an amount it takes all of the GPU's memory
  {{- /* The scheduler would round 8 bytes up to a whole unit. */}}
  - expression: {{ include "gpuagent.policy.everyRequest" (printf "!one.deviceClassName.endsWith('gpuagent.io') || !%s\n|| quantity(string(one.capacity.requests.memory)).compareTo(quantity('1Mi')) >= 0" $memory) }}
    messageExpression: >-
      'memory in capacity.requests is less than 1Mi, as amounts without a suffix are bytes: did you mean '
      + (size(variables.bytes) > 0 ? variables.bytes[0] : '8') + 'Gi?'
  - expression: {{ include "gpuagent.policy.everyRequest" (printf "!one.deviceClassName.endsWith('gpuagent.io') || !%s\n|| (quantity(string(one.capacity.requests.cores)).isInteger()\n&& quantity(string(one.capacity.requests.cores)).asInteger() >= 0\n&& quantity(string(one.capacity.requests.cores)).asInteger() <= 100)" $cores) }}
    message: >-
      cores in capacity.requests is a whole percentage of a GPU's compute, 0 to 100. For a third write 30, not 0.3
  - expression: {{ include "gpuagent.policy.everyRequest" (printf "!one.deviceClassName.endsWith('gpuagent.io') || !%s\n|| quantity(string(one.capacity.requests.sharers)).compareTo(quantity('1')) == 0" $sharers) }}
    message: >-
      a claim counts as 1 of the claims that share a GPU: leave sharers out, unless the request has adminAccess
  - expression: "variables.config.all(one, !has(one.opaque) || one.opaque.driver != 'gpu.gpuagent.io')"
    message: >-
      driver gpu.gpuagent.io takes no configuration: remove it, and name amounts in capacity.requests
{{- end }}

{{/* A request is exact, or has alternatives. A monitor asks for nothing of the GPUs, which is an amount of 0. */}}
{{- define "gpuagent.policy.everyRequest" -}}
>-
{{ printf "variables.requests.all(request,\n(!has(request.exactly) || request.exactly.?adminAccess.orValue(false)\n|| [request.exactly].all(one,\n%s))\n&& (!has(request.firstAvailable) || request.firstAvailable.all(one,\n%s)))" . . | indent 6 }}
{{- end }}
