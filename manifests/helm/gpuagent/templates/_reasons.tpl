{{- define "gpuagent.reasons" -}}
['APIServerUnavailable', 'AnnotationCorrected', 'AnnotationsNotWritten', 'ApplicationXID',
'ConflictingDevicePlugin', 'DRADriverNotRegistered', 'DeviceCountHigh', 'DeviceListTooLarge',
'DevicesReallocated', 'DriverUnavailable', 'FailedPodDeleted', 'FailedPodsNotDeleted', 'FeatureGateOff',
'FenceUnknown', 'FenceUnreadable', 'GPUDecisionIgnored', 'GPUDecisionNotKept', 'GPUDegraded', 'GPUFenced',
'GPUGroupDiffers', 'GPUIsolationUnsupported', 'GPULinkDegraded', 'GPURecovered', 'GPURefused', 'GPUUnfenced',
'GPUUnhealthy', 'GPUUnreadable', 'HarmlessXID', 'InvalidModeLabel', 'InvalidPlacementLabel',
'IsolationDisabled', 'IsolationDown', 'IsolationMissing', 'MIGEnabled', 'MixedGPUs', 'ModeLabelRemoved',
'ModeNotSaved', 'ModeNotYetKnown', 'ModeSwitch', 'ModeSwitchWaiting', 'NoGPUs', 'NoUsableGPU',
'NonContiguousGPUMinors', 'PlacementSwitch', 'PodResourcesUnavailable', 'PodsUnavailable',
'PreferredAllocationUnsupported', 'Ready', 'ReportNotWritten', 'ResourceNotRegistered',
'ResourceSliceChanged', 'ResourceSliceNotWritten', 'ResourceSlicesUnavailable', 'StartupTaint',
'StartupTaintRemoved', 'UnitsChanged', 'UntrustedDaemon', 'XIDUntied']
{{- end }}
