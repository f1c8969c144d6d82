#!/bin/sh
# Regenerates pgle/xla/protos/*_pb2.py and *_pb2.pyi from the .proto files beside them.
#
# An old protoc is used on purpose: generated code runs under its own protobuf runtime and newer ones, never older
# ones, and ours has to run under every runtime from 4.25 on. The tools go to a throw-away environment.
set -eu
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet 'grpcio-tools==1.62.3' 'mypy-protobuf==3.6.0' 'setuptools<80'
PATH="$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc --proto_path=. --python_out=. --mypy_out=quiet:. \
    pgle/xla/protos/*.proto
