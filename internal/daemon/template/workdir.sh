# Makes the directory $1, gives what of it is new to the user $2, and says what it is called.
set -e
new=$1
if [ ! -d "$new" ]; then
	while above=$(dirname "$new") && [ ! -d "$above" ]; do new=$above; done
	mkdir -p "$1"
	chown -R "$2:" "$new"
fi
cd "$1"
pwd
