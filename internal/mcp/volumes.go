package mcp

import (
	"context"

	"github.com/forkd/forkd/client"
)

// volumeTools returns the tool for volumes. There is only one such tool, because a model chooses
// less well among many tools. To mount volumes in new sandboxes, a client uses arguments of
// spawn_sandboxes and fork.
func volumeTools() []tool {
	return []tool{
		define(
			"volumes",
			"List, create, copy or delete volumes: disks with a name, which outlive sandboxes. attach and detach mount and unmount "+
				"one in a running sandbox, spawn_sandboxes and fork mount them in new ones, if the snapshot has volume_slots (see "+
				"list_snapshots). Returns the volumes afterwards.",
			Run,
			destructive,
			volumes,
			oneOf("action", "list", "create", "copy", "delete", "attach", "detach"),
			between("size_mib", 16, 1<<20, 1024),
		),
	}
}

// mountArg is a volume in the arguments of a tool that makes sandboxes.
type mountArg struct {
	Name string `json:"name"`
	Path string `json:"path" jsonschema:"absolute path in the sandboxes"`
	Mode string `json:"mode,omitempty" jsonschema:"ro: read-only; copy: a private copy; absent: one sandbox writes to the volume"`
}

func mountsOf(args []mountArg) (list []client.VolumeMount) {
	for _, a := range args {
		list = append(list, client.VolumeMount(a))
	}
	return list
}

type volumeArgs struct {
	Action  string `json:"action,omitempty"`
	Name    string `json:"name,omitempty" jsonschema:"the volume to create, delete, attach or detach, or the new copy"`
	From    string `json:"from,omitempty" jsonschema:"with copy: the volume to copy, to which no sandbox may write meanwhile"`
	SizeMiB uint64 `json:"size_mib,omitempty" jsonschema:"with create: maximum of the data"`
	ID      string `json:"sandbox_id,omitempty" jsonschema:"with attach and detach: the sandbox, which must be running"`
	Path    string `json:"path,omitempty" jsonschema:"with attach: absolute path in the sandbox"`
	Mode    string `json:"mode,omitempty" jsonschema:"with attach, ro: read-only; copy: a private copy; absent: the sandbox writes to the volume"`
}

func volumes(ctx context.Context, c *call, in volumeArgs) (l list[client.Volume], err error) {
	if (in.Action == "list") != (in.Name == "") {
		return l, wrong("name", "%q: want none with list, and a name otherwise", in.Name)
	}
	if (in.Action == "copy") != (in.From != "") {
		return l, wrong("from", "%q: want the name of a volume with copy, and none otherwise", in.From)
	}
	attach, detach := in.Action == "attach", in.Action == "detach"
	if (attach || detach) != (in.ID != "") {
		return l, wrong("sandbox_id", "%q: want a sandbox with attach and detach, and none otherwise", in.ID)
	}
	if attach != (in.Path != "") {
		return l, wrong("path", "%q: want a path with attach, and none otherwise", in.Path)
	}
	if in.Mode != "" && !attach {
		return l, wrong("mode", "%q: want none without attach", in.Mode)
	}
	switch in.Action {
	case "attach":
		_, err = c.AttachVolume(ctx, in.ID, client.VolumeMount{Name: in.Name, Path: in.Path, Mode: in.Mode})
	case "detach":
		err = c.DetachVolume(ctx, in.ID, in.Name)
	case "create":
		_, err = c.CreateVolume(ctx, client.VolumeRequest{Name: in.Name, SizeMiB: in.SizeMiB})
	case "copy":
		_, err = c.SnapshotVolume(ctx, in.From, client.VolumeSnapshotRequest{Name: in.Name})
	case "delete":
		err = c.DeleteVolume(ctx, in.Name)
	}
	if err != nil {
		return l, err
	}
	return listed(ctx, c.VolumePage)
}
