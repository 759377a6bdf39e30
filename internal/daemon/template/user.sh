# Makes the user $1 if there is none, and says the name: $1 may be a number.
if ! id -u "$1" >/dev/null 2>&1; then
	if command -v useradd >/dev/null; then
		useradd --create-home --shell /bin/bash "$1" >&2
	else
		adduser -D "$1" >&2
	fi || exit
fi
id -un "$1"
