{{/* What the scheduler's pod may write, kube-scheduler included; the names are those of the scheduler's code. */}}

{{- define "gpuscheduler.policy.pods" -}}
variables:
- name: part
  expression: "has(request.subResource) ? request.subResource : ''"
- name: oldAnnotations
  expression: "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
- name: newAnnotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
# As maps of fields: what is not named in a rule must stay as it is, fields of later versions included.
{{- range $part := list "metadata" "spec" "status" }}
- name: old{{ title $part }}
  expression: "has(oldObject.{{ $part }}) ? dyn(oldObject.{{ $part }}) : {}"
- name: new{{ title $part }}
  expression: "has(object.{{ $part }}) ? dyn(object.{{ $part }}) : {}"
{{- end }}
validations:
  - expression: >-
      request.operation == 'UPDATE' && variables.part in ['', 'status']
      || request.operation == 'CREATE' && variables.part == 'binding'
      || request.operation == 'DELETE' && variables.part == ''
      {{- if .Values.scheduler.placeholders }}
      || request.operation == 'CREATE' && variables.part == '' && request.namespace == {{ .Release.Namespace | squote }}
      && variables.newSpec.schedulerName == 'gpuagent.io-placeholder'
      && !('nodeName' in variables.newSpec) && !('initContainers' in variables.newSpec)
      && variables.newSpec.containers.all(container, container.image == 'placeholder.invalid/gpuagent')
      {{- end }}
      {{- if include "gpuscheduler.evicts" . }}
      || request.operation == 'CREATE' && variables.part == 'eviction'
      {{- end }}
    message: the scheduler may bind pods, delete those that it preempts, wake those that wait, and write their status
  - expression: >-
      request.operation != 'UPDATE' || variables.part != ''
      || has(oldObject.spec.schedulerName) && oldObject.spec.schedulerName == {{ .Values.scheduler.name | squote }}
    message: the scheduler may change its own pods only, with spec.schedulerName {{ .Values.scheduler.name }}
  - expression: >-
      request.operation != 'UPDATE'
      || {{ include "gpuscheduler.policy.same" (dict "part" "Metadata" "but" (list "annotations" "managedFields" "resourceVersion" "generation")) }}
      && variables.newAnnotations.all(key,
      key in ['gpuagent.io/nudged', 'gpuagent.io/gang-commit']
      || (key in variables.oldAnnotations && variables.oldAnnotations[key] == variables.newAnnotations[key]))
      && variables.oldAnnotations.all(key, key in variables.newAnnotations)
    message: the scheduler may set the annotations gpuagent.io/nudged and gpuagent.io/gang-commit of a pod only
  # Of the gates, a job's alone comes off.
  - expression: >-
      request.operation != 'UPDATE' || variables.part != ''
      || {{ include "gpuscheduler.policy.same" (dict "part" "Spec" "but" (list "schedulingGates")) }}
      && (has(object.spec.schedulingGates) ? object.spec.schedulingGates : [])
      .filter(gate, gate.name != 'gpuagent.io/job')
      == (has(oldObject.spec.schedulingGates) ? oldObject.spec.schedulingGates : [])
      .filter(gate, gate.name != 'gpuagent.io/job')
    message: the scheduler may take the scheduling gate gpuagent.io/job off a pod, and may not change its spec otherwise
  - expression: >-
      request.operation != 'UPDATE' || variables.part != 'status'
      || {{ include "gpuscheduler.policy.same" (dict "part" "Status" "but" (list "nominatedNodeName" "conditions")) }}
    message: >-
      the scheduler may change nominatedNodeName and conditions of a pod's status only, and not what kubelet says of it
  - expression: >-
      request.operation != 'UPDATE' || variables.part != 'status'
      || (has(object.status.conditions) ? object.status.conditions : []).all(one,
      one.type in ['PodScheduled', 'DisruptionTarget']
      || has(oldObject.status.conditions) && one in oldObject.status.conditions)
      && (has(oldObject.status.conditions) ? oldObject.status.conditions : []).all(one,
      one.type in ['PodScheduled', 'DisruptionTarget']
      || has(object.status.conditions) && one in object.status.conditions)
    message: the scheduler may change the conditions PodScheduled and DisruptionTarget of a pod only
{{- end }}

{{/* All fields of a part of a pod but these are as before. */}}
{{- define "gpuscheduler.policy.same" -}}
{{- $but := .but | toJson | replace "\"" "'" -}}
variables.new{{ .part }}.all(field, field in {{ $but }}
      || field in variables.old{{ .part }} && variables.old{{ .part }}[field] == variables.new{{ .part }}[field])
      && variables.old{{ .part }}.all(field, field in {{ $but }} || field in variables.new{{ .part }})
{{- end }}

{{- define "gpuscheduler.policy.bindings" -}}
variables:
- name: annotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
validations:
  - expression: request.operation == 'CREATE' && request.resource.resource == 'pods'
    message: the scheduler may bind pods at their own path only
  # They become annotations of the pod.
  - expression: >-
      !has(object.metadata.annotations) || variables.annotations.all(key, key in
      ['scheduler.framework.gpushare.allocation', 'gpushare.alibabacloud.com/core-percentage',
      'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_POD', 'ALIYUN_COM_GPU_MEM_DEV', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME',
      'ALIYUN_COM_GPU_MEM_ASSIGNED', 'topology.kubernetes.io/gpu-group', 'topology.kubernetes.io/gpu-visible',
      'gpuagent.io/decided'])
    message: the scheduler may annotate the pods that it binds with their GPUs only
{{- end }}

{{- define "gpuscheduler.policy.leases" -}}
variables:
- name: lease
  expression: "request.operation == 'DELETE' ? oldObject : object"
validations:
  - expression: >-
      request.operation in ['CREATE', 'UPDATE'] && request.resource.resource == 'leases'
      && variables.lease.metadata.name == 'gpu-scheduler'
      && variables.lease.metadata.namespace == {{ .Release.Namespace | squote }}
    message: the scheduler may write its own lease {{ .Release.Namespace }}/gpu-scheduler only
{{- end }}

{{- define "gpuscheduler.policy.events" -}}
variables:
# Without a type: the check of types would look for the fields of events.k8s.io, although such Events are converted.
- name: event
  expression: dyn(object)
- name: before
  expression: dyn(oldObject)
- name: writes
  expression: request.operation in ['CREATE', 'UPDATE']
# kube-scheduler names its profile, and its election of a leader in the source alone.
- name: senders
  expression: "[{{ .Values.scheduler.name | squote }}, 'gpuscheduler']"
validations:
  - expression: "variables.writes && (!has(request.subResource) || request.subResource == '')"
    message: the scheduler may make Events and count them, and do nothing else to them
  - expression: >-
      !variables.writes
      || (has(variables.event.reportingComponent) && variables.event.reportingComponent != ''
      ? variables.event.reportingComponent in variables.senders
      : has(variables.event.source) && has(variables.event.source.component) && variables.event.source.component in variables.senders)
      && (!has(variables.event.source) || !has(variables.event.source.component) || variables.event.source.component in variables.senders)
    message: the scheduler may send Events in its own name only
  - expression: >-
      request.operation != 'UPDATE'
      || variables.before.involvedObject == variables.event.involvedObject
      && (has(variables.before.reportingComponent) && variables.before.reportingComponent in variables.senders
      || has(variables.before.source) && has(variables.before.source.component) && variables.before.source.component in variables.senders)
    message: the scheduler may change its own Events only
  - expression: >-
      !variables.writes || has(variables.event.reason) && variables.event.reason in
      ['Scheduled', 'FailedScheduling', 'Preempted', 'BindingConditionsPending', 'LeaderElection',
      'DefragmentationGaveUp', 'Defragmenting', 'EvictedToDefragment', 'EvictionBlocked', 'GPUsFragmented',
      'JobBroken', 'JobEvicted', 'JobNotWhole', 'NodeAvoided', 'ScaleUpRequested', 'WaitingForGPUs']
    message: the scheduler may send Events with the reasons of its own list only
  - expression: >-
      !variables.writes
      || has(variables.event.involvedObject.kind) && has(variables.event.involvedObject.name)
      && (variables.event.involvedObject.kind == 'Pod' && variables.event.reason != 'LeaderElection'
      || variables.event.involvedObject.kind == 'Lease' && variables.event.involvedObject.name == 'gpu-scheduler'
      && variables.event.reason == 'LeaderElection')
    message: the scheduler may send Events about pods, and about its own lease, only
  # Both programs cut their messages to so many characters; the API server does not bound the other texts.
  - expression: >-
      !variables.writes
      || (!has(variables.event.message) || size(variables.event.message) <= 1024)
      && (!has(variables.event.type) || variables.event.type in ['Normal', 'Warning'])
      && (!has(variables.event.action) || size(variables.event.action) <= 128)
      && (!has(variables.event.involvedObject.name) || size(variables.event.involvedObject.name) <= 253)
      && (!has(variables.event.involvedObject.uid) || size(variables.event.involvedObject.uid) <= 253)
      && (!has(variables.event.involvedObject.apiVersion) || size(variables.event.involvedObject.apiVersion) <= 253)
      && (!has(variables.event.involvedObject.fieldPath) || size(variables.event.involvedObject.fieldPath) <= 253)
      && (!has(variables.event.involvedObject.resourceVersion) || size(variables.event.involvedObject.resourceVersion) <= 253)
      && (!has(variables.event.source) || !has(variables.event.source.host) || size(variables.event.source.host) <= 253)
      && (!has(variables.event.reportingInstance) || size(variables.event.reportingInstance) <= 253)
    message: the scheduler may send Events with messages of at most 1024 characters, and names of at most 253
  - expression: >-
      !variables.writes
      || !has(variables.event.metadata.labels) && !has(variables.event.metadata.annotations) && !has(variables.event.metadata.finalizers)
      && !has(variables.event.metadata.ownerReferences) && !has(variables.event.metadata.generateName)
      && (!has(variables.event.related) || has(variables.event.related.kind) && variables.event.related.kind == 'Pod'
      && (!has(variables.event.related.name) || size(variables.event.related.name) <= 253)
      && (!has(variables.event.related.uid) || size(variables.event.related.uid) <= 253)
      && !has(variables.event.related.fieldPath))
    message: the scheduler may set only the fields of an Event that it needs
{{- end }}
