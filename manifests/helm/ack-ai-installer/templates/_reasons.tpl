{{- define "gpuagent.reasons" -}}
['AnnotationCorrected', 'AnnotationsNotWritten', 'ApiUnavailable', 'ApplicationXid', 'DevicesGivenOutAgain',
'DriverUnavailable', 'FailedPodDeleted', 'FailedPodsNotDeleted', 'FenceUnknown', 'FenceUnreadable',
'GpuDecisionIgnored', 'GpuDecisionNotKept', 'GpuDegraded', 'GpuFenced', 'GpuGroupDiffers', 'GpuNotIsolated',
'GpuNumbersGap', 'GpuRecovered', 'GpuRefused', 'GpuUnfenced', 'GpuUnhealthy', 'GpuUnreadable', 'HarmlessXid',
'IsolationDown', 'IsolationMissing', 'KubeletDoesNotAsk', 'LinksAmiss', 'ManyDevices', 'MigEnabled',
'MixedGpus', 'ModeLabelRemoved', 'ModeNotSaved', 'ModeSwitch', 'ModeSwitchWaiting', 'ModeUnknown', 'NoGpus',
'NotRegistered', 'OtherPlugin', 'PlacementSwitch', 'PodResourcesUnavailable', 'PodsUnavailable', 'Ready',
'ReportNotWritten', 'StartupTaint', 'StartupTaintRemoved', 'Unisolated', 'UnitTooSmall', 'UnitsChanged',
'UnknownMode', 'UnknownPlacement', 'UntrustedDaemon', 'XidUntied']
{{- end }}
