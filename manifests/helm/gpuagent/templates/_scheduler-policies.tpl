{{/* What the scheduler's pod may write, kube-scheduler included; the names are those of the scheduler's code. */}}

{{- define "gpuscheduler.policy.pods" -}}
variables:
- name: part
  expression: "has(request.subResource) ? request.subResource : ''"
- name: oldAnnotations
  expression: "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
- name: newAnnotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
- name: gates
  expression: "has(object.spec.schedulingGates) ? object.spec.schedulingGates : []"
validations:
  - expression: >-
      request.operation == 'UPDATE' && variables.part in ['', 'status']
      || request.operation == 'CREATE' && variables.part == 'binding'
      || request.operation == 'DELETE' && variables.part == ''
    message: the scheduler may bind pods, delete those that it preempts, wake those that wait, and write their status
  - expression: >-
      request.operation != 'UPDATE' || variables.part != ''
      || has(oldObject.spec.schedulerName) && oldObject.spec.schedulerName == {{ .Values.scheduler.name | squote }}
    message: the scheduler may change its own pods only, with spec.schedulerName {{ .Values.scheduler.name }}
  - expression: >-
      request.operation != 'UPDATE'
      || (has(object.metadata.labels) ? object.metadata.labels : {})
      == (has(oldObject.metadata.labels) ? oldObject.metadata.labels : {})
      && (has(object.metadata.finalizers) ? object.metadata.finalizers : [])
      == (has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : [])
      && has(object.metadata.ownerReferences) == has(oldObject.metadata.ownerReferences)
      && (!has(object.metadata.ownerReferences) || object.metadata.ownerReferences == oldObject.metadata.ownerReferences)
      && variables.newAnnotations.all(key,
      key in ['gpuagent.io/nudged', 'gpuagent.io/gang-commit']
      || (key in variables.oldAnnotations && variables.oldAnnotations[key] == variables.newAnnotations[key]))
      && variables.oldAnnotations.all(key, key in variables.newAnnotations)
    message: the scheduler may set the annotations gpuagent.io/nudged and gpuagent.io/gang-commit of a pod only
  # What the API server lets anybody change in the spec of a pod, but for the gate of a job.
  - expression: >-
      request.operation != 'UPDATE' || variables.part != '' || object.spec == oldObject.spec
      || has(oldObject.spec.schedulingGates)
      && oldObject.spec.schedulingGates.filter(gate, gate.name != 'gpuagent.io/job') == variables.gates
      && object.spec.containers == oldObject.spec.containers
      {{- range $field := list "initContainers" "tolerations" "activeDeadlineSeconds" "nodeSelector" "affinity" "terminationGracePeriodSeconds" }}
      && has(object.spec.{{ $field }}) == has(oldObject.spec.{{ $field }})
      && (!has(object.spec.{{ $field }}) || object.spec.{{ $field }} == oldObject.spec.{{ $field }})
      {{- end }}
    message: the scheduler may take the scheduling gate gpuagent.io/job off a pod, and may not change its spec otherwise
  - expression: >-
      request.operation != 'UPDATE' || variables.part != 'status'
      {{- range $n, $field := list "phase" "reason" "message" "startTime" "hostIP" "podIP" "qosClass" "containerStatuses" "initContainerStatuses" "ephemeralContainerStatuses" }}
      {{ if $n }}&&{{ else }}||{{ end }} has(object.status.{{ $field }}) == has(oldObject.status.{{ $field }})
      && (!has(object.status.{{ $field }}) || object.status.{{ $field }} == oldObject.status.{{ $field }})
      {{- end }}
    message: the scheduler may not change what kubelet says of a pod
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
