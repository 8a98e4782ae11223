{{- define "gpuagent.reasons" -}}
['APIServerUnavailable', 'AnnotationCorrected', 'AnnotationsNotWritten', 'ApplicationXID',
'ConflictingDevicePlugin', 'DRADriverNotRegistered', 'DeviceCountHigh', 'DeviceListTooLarge',
'DevicesReallocated', 'DriverUnavailable', 'EventsRefused', 'FeatureGateOff', 'FenceUnknown',
'FenceUnreadable', 'GPUDecisionIgnored', 'GPUDegraded', 'GPUFenced', 'GPUGroupDiffers', 'GPUIdle',
'GPUIdleEvicted', 'GPUIsolationUnsupported', 'GPULinkDegraded', 'GPUMemoryChanged', 'GPUMemoryExhausted',
'GPUMemoryResized', 'GPUMemoryShrunk', 'GPUMemoryUnknown', 'GPUMemoryUnlimited', 'GPUMissing', 'GPURecovered',
'GPURefused', 'GPURequestMistaken', 'GPUResizeRefused', 'GPUSmallerThanUnit', 'GPUUnfenced', 'GPUUnhealthy',
'GPUUnreadable', 'HarmlessXID', 'InvalidIdleLabel', 'InvalidModeLabel', 'InvalidPlacementLabel',
'IsolationChangeWaiting', 'IsolationDisabled', 'IsolationDown', 'IsolationMissing', 'IsolationNotYetKnown',
'MIGEnabled', 'MemoryUnitTooLarge', 'MixedGPUs', 'ModeLabelRemoved', 'ModeNotSaved', 'ModeNotYetKnown',
'ModeSwitch', 'ModeSwitchWaiting', 'NoGPUs', 'NoUsableGPU', 'NodeNotWritten', 'NonContiguousGPUMinors',
'PlacementSwitch', 'PodResourcesUnavailable', 'PodsUnavailable', 'PreferredAllocationUnsupported',
'PrepareNotRetried', 'ReportNotWritten', 'ResourceNotRegistered', 'ResourceSliceChanged',
'ResourceSliceNotWritten', 'ResourceSlicesUnavailable', 'StartupTaint', 'StartupTaintRemoved', 'UnitsChanged',
'UntrustedDaemon', 'XIDUntied']
{{- end }}
