#!/bin/bash
# Builds forkd's minimal guest kernel from the Debian kernel source package and prints the directory
# with the result:
#
#   <cache>/kernel/forkd-<package version>-<config digest>/{vmlinux,bzImage,System.map,config}
#
# If that directory exists, it only prints it. The same package, config and compiler give the same
# bytes, because build time, user, host and paths are fixed. It needs apt's package lists to offer
# linux-source-6.12 (bookworm-security, bookworm-backports or trixie) and about 2 GiB of disk while
# it builds. FORKD_CACHE overrides ~/.cache/forkd, and JOBS the number of jobs.
set -euo pipefail

source_package=linux-source-6.12
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FORKD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forkd}

fail() { echo "guest/kernel/build.sh: $*" >&2; exit 1; }
say() { echo "guest kernel: $*" >&2; }

version=$(apt-cache show --no-all-versions "$source_package" 2>/dev/null | sed -n 's/^Version: //p')
[ -n "$version" ] || fail "apt offers no $source_package: enable bookworm-security or bookworm-backports, run apt-get update"
# The digest ignores comments. Raise the number when a change of this script changes the result.
digest=$({ echo "build 1"; grep -E '^(# )?CONFIG_' "$here/config"; } | sha256sum | cut -c1-12)
result=$cache/kernel/forkd-$version-$digest
mkdir -p "$cache/kernel"

# Only one build runs at a time. A second one waits and then finds the result.
exec 9>"$cache/kernel/.build.lock"
flock -n 9 || { say "waiting for another build"; flock 9; }
if [ -e "$result/vmlinux" ]; then echo "$result"; exit 0; fi

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need gcc gcc; need make make; need flex flex; need bison bison; need bc bc; need xz xz-utils; need perl perl
[ -e /usr/include/gelf.h ] || missing+=(libelf-dev)
if [ ${#missing[@]} -gt 0 ]; then
	[ "$(id -u)" = 0 ] || fail "missing packages; run: sudo apt-get install --no-install-recommends ${missing[*]}"
	apt-get install -y --no-install-recommends "${missing[@]}" >&2
fi

work=$(mktemp -d "$cache/kernel/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
say "downloading $source_package $version (about 150 MB, once)"
apt-get download -o APT::Sandbox::User="$(id -un)" "$source_package=$version" >&2
say "unpacking"
# An x86 build reads nothing below these directories, which are half of the unpacked size.
dpkg-deb --fsys-tarfile ./*.deb | tar -xO --wildcards './usr/src/*.tar.xz' |
	tar -xJ --strip-components=1 --exclude='*/drivers/gpu/drm/amd/include/*' --exclude='*/tools/testing/*' \
		--exclude='*/tools/perf/*' --exclude='*/arch/*/boot/dts/*'

export KBUILD_BUILD_TIMESTAMP='2025-01-01 00:00:00 UTC' KBUILD_BUILD_USER=forkd KBUILD_BUILD_HOST=forkd
export KBUILD_BUILD_VERSION=1 LC_ALL=C TZ=UTC
make -s ARCH=x86_64 allnoconfig KCONFIG_ALLCONFIG="$here/config" >&2

# Kconfig silently drops settings that it cannot honour.
while read -r line; do
	case $line in
	CONFIG_*) grep -qxF -- "$line" .config || fail "config: '$line' is not honoured" ;;
	'# CONFIG_'*' is not set') ! grep -q "^$(cut -d' ' -f2 <<<"$line")=" .config || fail "config: '$line' is not honoured" ;;
	esac
done <"$here/config"

say "building with ${JOBS:-$(nproc)} jobs (about 9 minutes of CPU time, once)"
make ARCH=x86_64 -j"${JOBS:-$(nproc)}" vmlinux bzImage |
	awk '/^  (CC|AS) / && ++n % 100 == 0 { print "guest kernel: " n " files compiled"; fflush() }' >&2
say "done after $((SECONDS / 60)) min $((SECONDS % 60)) s"

mkdir out
objcopy --strip-all vmlinux out/vmlinux # loaders need the segments only
cp arch/x86/boot/bzImage System.map out/
cp .config out/config
sync out/*
mv -T out "$result"
sync "$cache/kernel"
echo "$result"
