"""Makes schemas for kubeconform, which must be self-contained, for the kinds in the manifests here:

    schemas.py DIRECTORY TARGET

DIRECTORY has the schemas of a release, from the package kubernetes-validate.
"""
import json
import pathlib
import sys

KINDS = ["daemonset-apps-v1", "namespace-v1", "networkpolicy-networking-v1", "service-v1", "serviceaccount-v1"]

source, target = map(pathlib.Path, sys.argv[1:])
shared = json.loads((source / "_definitions.json").read_text())["$defs"]
target.mkdir(parents=True, exist_ok=True)
for kind in KINDS:
    schema = json.loads((source / f"{kind}.json").read_text()) | {"$defs": shared}
    text = json.dumps(schema).replace("/api/_definitions.json#/", "#/")
    (target / f"{kind}.json").write_text(text)
