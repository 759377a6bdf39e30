# Puts the files of a git repository into the directory $1: of the repository at $2 the commit $4, asked for as $3,
# and of it the directory $5, or all. With $6 also .git. $7 is an empty directory to work in.
set -e
to=$1 url=$2 ref=$3 commit=$4 below=$5 keep=$6 work=$7
if ! command -v git >/dev/null; then
	echo "the guest has no git: install it in a step before" >&2
	exit 1
fi
export GIT_TERMINAL_PROMPT=0 GIT_CONFIG_NOSYSTEM=1
cd "$work"
git init -q .
git remote add origin "$url"
if ! git fetch -q --depth 1 --no-tags origin "$ref" 2>/dev/null; then # some servers give no single commits
	git fetch -q --tags origin '+refs/heads/*:refs/remotes/origin/*'
	git update-ref FETCH_HEAD "$commit"
fi
got=$(git rev-parse 'FETCH_HEAD^{commit}')
if [ "$got" != "$commit" ]; then
	echo "$ref of $url is the commit $got, not $commit" >&2
	exit 1
fi
git -c advice.detachedHead=false checkout -q "$commit"
git submodule -q update --init --recursive --depth 1
if [ -z "$keep" ]; then find . -name .git -prune -exec rm -rf {} +; fi
if [ -n "$below" ] && [ ! -d "$below" ]; then
	echo "the commit has no directory $below" >&2
	exit 1
fi
mkdir -p "$to"
tar -cf - -C "./$below" . | tar -xpf - -C "$to"
