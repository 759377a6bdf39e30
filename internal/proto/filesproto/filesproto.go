// Package filesproto is the protocol between the daemon and forkd-files, which serves one request
// for the files of a volume.
//
// forkd-files is the init of a VM whose only disk is the volume. It dials Port of the host. The
// daemon then sends one HTTP/1.1 request, and forkd-files answers it. Paths and fields are those of
// E2B's API for the files of volumes, without the volume's id:
//
//	GET    /dir?path=P&depth=N             200: entries of a directory
//	POST   /dir?path=P&uid&gid&mode&force  201: makes a directory
//	GET    /path?path=P                    200: describes a file or directory
//	PATCH  /path?path=P                    200: changes uid, gid and mode, which are in the JSON body
//	DELETE /path?path=P                    204: removes a file, or a directory with everything in it
//	GET    /file?path=P                    200: the content of a file
//	PUT    /file?path=P&uid&gid&mode&force 201: replaces a file by the body
//
// For a GET, the volume is mounted read-only. After all other requests, forkd-files unmounts the
// volume before it answers, so the change is on the disk.
//
// A guest may have written the volume, and may take over forkd-files. So the daemon trusts nothing
// in an answer.
package filesproto

// Port is the vsock port of the host that forkd-files dials.
const Port = 1030

// Error is the body of an answer with an error.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}
