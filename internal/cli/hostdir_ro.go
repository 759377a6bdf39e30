package cli

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
)

const (
	// sharedLabel marks a volume that holds the files of a directory for one command. The command
	// removes the volume. If the command is killed, a later command removes the volume.
	sharedLabel = "forkd.host-directory"
	// sharedStale is an age. If a volume with sharedLabel is older, its command must have been
	// killed.
	sharedStale = 6 * time.Hour
	// sharedFillSecs bounds the time to copy the directories into the volumes. After this time, the daemon
	// removes the sandbox that receives the files, even if this process is killed.
	sharedFillSecs = 3600
)

// fork forks sandboxes. They get the volumes of the request, and the directories with the mode ro.
// If whole is true, Ctrl-C does not interrupt the fork itself, because an interrupted fork may
// leave a sandbox behind.
func (h *hostDirs) fork(ctx context.Context, cl *client.Client, req client.ForkRequest, whole bool,
	errOut io.Writer) (client.Forked, error) {
	remove, err := h.share(ctx, cl, &req, errOut)
	if err != nil {
		return client.Forked{}, err
	}
	defer remove()
	if whole {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), forkTimeout)
		defer cancel()
	}
	f, err := cl.Fork(ctx, req)
	if err != nil {
		err = h.explained(err)
	}
	return f, err
}

// share gives the sandboxes of a fork the directories with the mode ro. It copies each directory
// once into a volume, through another sandbox of the snapshot, and adds the volumes to the request.
// After the fork, the caller calls the returned function, which removes the volumes. The new
// sandboxes keep the files.
func (h *hostDirs) share(ctx context.Context, cl *client.Client, req *client.ForkRequest, errOut io.Writer) (
	remove func(), err error) {
	var made []client.VolumeMount
	var from []hostDir
	remove = func() {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		for _, v := range made {
			if err := cl.DeleteVolume(after, v.Name); err != nil && !client.IsNotFound(err) {
				printf(errOut, "forkd: the volume %s was not removed: %s\n", v.Name, err)
			}
		}
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	for _, d := range h.dirs {
		if d.mode != "ro" {
			continue
		}
		if req.SourceID != "" {
			return remove, usageError{errors.New("--volume: the mode ro needs a snapshot, not --from-sandbox: use the " +
				"mode copy, or branch the sandbox and fork the branch")}
		}
		size, err := sharedMiB(io.NewSectionReader(d.packed, 0, d.size))
		if err != nil {
			return remove, fmt.Errorf("--volume %s: %w", d.local, err)
		}
		// If a token has a label prefix, its snapshots' tags and its volumes' names begin with the prefix.
		name := fmt.Sprintf("%.90s.dir-%s", req.SnapshotTag, strings.ToLower(rand.Text()))
		v, err := cl.CreateVolume(ctx, client.VolumeRequest{Name: name, SizeMiB: size,
			Labels: map[string]string{sharedLabel: ""}})
		if err != nil {
			return remove, err
		}
		made, from = append(made, client.VolumeMount{Name: v.Name, Path: d.remote}), append(from, d)
	}
	if len(made) == 0 {
		return remove, nil
	}
	if err := removeStale(ctx, cl); err != nil {
		return remove, err
	}
	if err := fillShared(ctx, cl, req.SnapshotTag, made, from); err != nil {
		return remove, err
	}
	for _, v := range made {
		req.Volumes = append(req.Volumes, client.VolumeMount{Name: v.Name, Path: v.Path, Mode: "ro"})
	}
	return remove, nil
}

// sharedMiB returns the size of a volume for the files of an archive, in MiB.
func sharedMiB(archive io.Reader) (uint64, error) {
	const block = 4096
	var bytes uint64
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		// A volume has an inode for every two blocks. An entry's name takes less than a block.
		bytes += (uint64(h.Size)+block-1)/block*block + 2*block
	}
	bytes += bytes/8 + 80<<20 // tables of the file system and a journal of at most 64 MiB
	return (bytes + 1<<20 - 1) >> 20, nil
}

// fillShared copies packed directories into volumes. It mounts the volumes in a sandbox of the snapshot, so
// the files belong to the default user of the snapshot's sandboxes. That sandbox has no network.
func fillShared(ctx context.Context, cl *client.Client, tag string, volumes []client.VolumeMount, from []hostDir) (
	err error) {
	forked, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: tag, N: 1, TTLSecs: sharedFillSecs, Volumes: volumes,
		Network: &client.Network{Mode: "none"}, Hooks: &client.Hooks{}})
	if errors.Is(err, client.ErrNoVolumeSlots) {
		return fmt.Errorf("%w. The mode copy needs no slots", err)
	}
	if err != nil {
		return err
	}
	id := forked.Sandboxes[0].ID
	// Once the writer is deleted, the volume has all data, because the guest has unmounted it.
	defer func() { err = errors.Join(err, removeSandbox(context.WithoutCancel(ctx), cl, id)) }()
	for i, d := range from {
		if err := cl.WriteTree(ctx, id, d.remote, io.NewSectionReader(d.packed, 0, d.size)); err != nil {
			return fmt.Errorf("copy %s to %s:%s: %w", d.local, id, d.remote, err)
		}
		// Flush the files now, because the deletion waits only a short time for the guest's writes
		// to the disk.
		r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"sync", "-f", volumes[i].Path}, User: "root",
			TimeoutSecs: sharedFillSecs})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("exit code %d: %.1000s%.1000s", r.ExitCode, r.Stderr, r.Error)
		}
		if err != nil {
			return fmt.Errorf("sync -f %s in %s: %w", d.remote, id, err)
		}
	}
	return nil
}

// removeStale removes the volumes of earlier commands that were killed. Sandboxes that have the files
// keep them.
func removeStale(ctx context.Context, cl *client.Client) error {
	list, _, err := cl.VolumePage(ctx, client.PageRequest{Labels: []string{sharedLabel}})
	if err != nil {
		return err
	}
	for _, v := range list {
		if v.Writer != "" || time.Since(time.Unix(v.CreatedAt, 0)) < sharedStale {
			continue
		}
		if err := cl.DeleteVolume(ctx, v.Name); err != nil && !client.IsNotFound(err) &&
			!errors.Is(err, client.ErrVolumeInUse) {
			return err
		}
	}
	return nil
}
