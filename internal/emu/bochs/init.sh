#!/bin/sh
# The init of the emulated Intel host: drivers, file systems, then its job, then power off.
# Lines that begin with "forkd:" are for whoever watches the console.
export PATH=/bin HOME=/root TMPDIR=/tmp LANG=C.UTF-8
mkdir -p /proc /sys /dev /run /tmp /root /disk
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec >/dev/console 2>&1

# The watcher takes a console that stays silent for an emulator that hangs. What the job has written
# gets to the disk, where it can be read even if the host does not end in order.
(while :; do
	echo "forkd: alive at $(cut -d' ' -f1 /proc/uptime)"
	sync
	sleep 2
done) &

end() { echo "forkd: $1"; sync; umount /disk; poweroff -f; sleep 1000; }

for module in /lib/forkd-modules/*.ko; do
	options=
	case $module in *-kvm_intel.ko) options=$(cat /etc/forkd/kvm-intel) ;; esac
	insmod "$module" $options || end "failed: load $module $options"
	rm "$module"
done
n=0
until [ -b /dev/sda ]; do
	n=$((n + 1))
	[ $n -lt 200 ] || end "failed: there is no disk"
	sleep 0.1
done
mount -t ext4 -o noatime /dev/sda /disk || end "failed: mount the disk"
ip link set lo up
hostname forkd-intel
ulimit -n 1048576

# What the job starts may make cgroups of its own below the root, as on a host where systemd has
# given it a place.
mkdir /sys/fs/cgroup/job
echo 0 >/sys/fs/cgroup/job/cgroup.procs
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
	echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done

echo "forkd: kvm_intel: $(cd /sys/module/kvm_intel/parameters && grep . ept unrestricted_guest enable_apicv | tr '\n' ' ')"
sh /etc/forkd/job
end "done"
