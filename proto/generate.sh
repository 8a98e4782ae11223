#!/bin/sh
# Regenerates gpuagent/_pb from proto/ with the oldest supported generator (its output loads under every newer
# runtime). Usage: proto/generate.sh OUTPUT_DIR   (a virtual environment with grpcio-tools and mypy-protobuf on PATH)
set -eu
cd "$(dirname "$0")/.."
exec python -m grpc_tools.protoc -I proto \
  --python_out="$1" --grpc_python_out="$1" --mypy_out="$1" --mypy_grpc_out="$1" \
  proto/gpuagent/_pb/*.proto
