# Makes the account $1 if there is none: it may be a number.
id -u "$1" >/dev/null 2>&1 && exit
if command -v useradd >/dev/null; then
	exec useradd --create-home --shell /bin/bash "$1"
fi
exec adduser -D "$1"
