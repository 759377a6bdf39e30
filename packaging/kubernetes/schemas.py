"""Makes schemas that stand alone, as kubeconform wants them, of those in a release's directory of the
package kubernetes-validate, for the kinds that the manifests here have:

    schemas.py DIRECTORY TARGET
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
