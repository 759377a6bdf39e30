# Makes a file system in memory at the directory $1, which only root can enter, for one secret.
set -e
mkdir "$1"
mount -t tmpfs -o size=4m,mode=700,nosuid,nodev,noexec tmpfs "$1"
