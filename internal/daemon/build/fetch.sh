# Fetches the URL $1 to the file $2, whose checksum by the program $3 must be $4.
set -e
url=$1 file=$2 program=$3 sum=$4
if command -v curl >/dev/null; then
	curl -fsSL --retry 3 --proto '=http,https' -o "$file" "$url"
elif command -v wget >/dev/null; then
	wget -q -O "$file" "$url"
elif command -v python3 >/dev/null; then
	python3 -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as i, open(sys.argv[2], "wb") as o: shutil.copyfileobj(i, o)' "$url" "$file"
else
	echo "the guest has neither curl nor wget nor python3: install one in a step before" >&2
	exit 1
fi
got=$("$program" <"$file" | cut -d ' ' -f 1)
if [ "$got" != "$sum" ]; then
	echo "the content of $url has the checksum ${program%sum}:$got, not $sum" >&2
	exit 1
fi
chmod 600 "$file"
