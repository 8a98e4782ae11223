#!/bin/sh
# Installs the locked dependencies for one architecture into a virtual environment; wheels only, by hash, nothing is compiled.
set -eu
arch=$1
venv=$2
case $arch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "no image for architecture $arch: amd64 and arm64 only" >&2 && exit 1 ;;
esac

python3.11 -m venv /build
/build/bin/pip install -q --require-hashes --only-binary :all: -r requirements-build.lock
python3.11 -m venv --without-pip "$venv"
# It has a path of its own in the image, and runs the image's own Python.
sed -i "s|$venv|/opt/gpuagent|" "$venv/pyvenv.cfg"
rm -f "$venv"/bin/[Aa]ctivate*
packages=$venv/lib/python3.11/site-packages
# Debian 12 has glibc 2.36.
/build/bin/pip install -q --no-deps --require-hashes --only-binary :all: --no-compile --target "$packages" \
    --python-version 3.11 --implementation cp \
    --platform "manylinux_2_34_$machine" --platform "manylinux_2_31_$machine" --platform "manylinux_2_28_$machine" \
    --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" \
    -r requirements-scheduler.lock
rm -rf "${packages:?}/bin"
# Two thirds of all: classes for each kind of object and each call, for two kinds of client. The agent asks with paths
# and reads JSON (docs/adr/0019-pods-do-without-kubernetes-library.md); these modules are loaded on demand only.
rm -rf "$packages/kubernetes/aio" "$packages/kubernetes/client/api"/[a-z]*_api.py "$packages/kubernetes/client/models"/[a-z]*.py
find "$packages" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
# What only builds of other packages, and only type checkers, read.
rm -rf "$packages/numpy/f2py" "$packages/numpy/distutils" "$packages/numpy/_core/include" "$packages/numpy/_core/lib"
find "$packages" -type f \( -name '*.a' -o -name '*.c' -o -name '*.h' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.pyx' \) -delete
python3.11 -m compileall -q -s "${venv%/opt/gpuagent}" --invalidation-mode unchecked-hash "$packages"
find "$venv" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
