#!/bin/sh
# Builds the wheel of this project and installs it, with its bill of materials, into /agent, the layer above the given root.
set -eu
root=$1
venv=/opt/gpuagent
packages=/agent$venv/lib/python3.11/site-packages

/build/bin/pip wheel -q --no-deps --no-build-isolation --no-index -w /wheels .
/build/bin/pip install -q --no-deps --no-index --no-compile --prefix "/agent$venv" /wheels/*.whl
# Scripts are to be run by the image's Python.
sed -i "1s|.*|#!$venv/bin/python3|" "/agent$venv"/bin/*
# It would name the builder's folder.
rm -f "$packages"/gpuagent-*.dist-info/direct_url.json
python3.11 -m compileall -q -s /agent --invalidation-mode unchecked-hash "$packages"
install -D -m 644 image/sbom.cdx.json /agent/usr/share/doc/gpuagent/sbom.cdx.json
install -D -m 644 LICENSE /agent/usr/share/doc/gpuagent/copyright
find /agent -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
# Directories that both layers have keep the mode of the one below.
test -d "$root$venv"
