"""Writes a CycloneDX file with the parts of a release.

    sbom.py NAME VERSION DATE PART.json... [--debian HOST.tar] >NAME.cdx.json

Each PART.json is the output of cyclonedx-gomod for a program. Its modules come from the program itself (`go
version -m`), not from go.mod. NAME consists of these programs; --debian adds the packages of a Debian in a
tar archive. The same input gives the same bytes.
"""

import argparse
import datetime
import json
import re
import sys
import tarfile
import urllib.parse
import uuid


def go_parts(paths):
    """Returns the programs, all of their modules, and the dependencies."""
    programs, modules, depends = [], {}, {}
    for path in paths:
        with open(path) as file:
            # A list of vulnerabilities does not distinguish a Go with an experiment from the plain Go.
            bom = json.loads(re.sub(r"-X:[a-z0-9,]+", "", file.read()))
        programs.append(bom["metadata"]["component"])
        for module in bom.get("components", []):
            modules[module["bom-ref"]] = module
        for entry in bom.get("dependencies", []):
            depends.setdefault(entry["ref"], set()).update(entry.get("dependsOn", []))
    return programs, modules, depends


def debian_packages(archive):
    """Returns a component for each installed package."""
    with tarfile.open(archive) as tar:
        text = tar.extractfile("./var/lib/dpkg/status").read().decode()
    components = []
    for paragraph in text.strip().split("\n\n"):
        field = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if field["Status"] != "install ok installed":
            continue
        purl = "pkg:deb/debian/{}@{}?arch={}".format(
            field["Package"], urllib.parse.quote(field["Version"], safe=""), field["Architecture"])
        components.append({"bom-ref": purl, "type": "library", "name": field["Package"],
                           "version": field["Version"], "purl": purl})
    return components


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("version")
    parser.add_argument("date", type=int, help="in seconds since 1970")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--debian")
    args = parser.parse_args()
    programs, modules, depends = go_parts(args.parts)
    for program, path in zip(programs, args.parts):
        # All belong to one module; the program's name distinguishes them.
        name = path.rsplit("/", 1)[-1].removesuffix(".json")
        depends.setdefault(name, set()).update(depends.pop(program["bom-ref"], ()))
        program.update({"bom-ref": name, "name": name, "version": args.version, "type": "application"})
    debian = debian_packages(args.debian) if args.debian else []
    top = {"bom-ref": args.name, "type": "application", "name": args.name, "version": args.version,
           "licenses": [{"license": {"id": "Apache-2.0"}}]}
    depends[args.name] = {c["bom-ref"] for c in programs + debian}
    components = sorted(programs + list(modules.values()) + debian, key=lambda c: c["bom-ref"])
    date = datetime.datetime.fromtimestamp(args.date, datetime.timezone.utc).isoformat()
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": date, "component": top},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(depends.items())],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom, sort_keys=True))
    json.dump({**bom, "serialNumber": f"urn:uuid:{serial}"}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
