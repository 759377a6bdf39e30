package docker_test

import "testing"

// A restart stops a container that removes itself, but does not remove it.
func TestRestartOfAContainerThatRemovesItself(t *testing.T) {
	r := start(t)
	for name, command := range map[string]string{"job": `,"Cmd":["sleep","600"]`, "machine": ""} {
		id := r.create("?name="+name, command+`,"HostConfig":{"AutoRemove":true}`)
		r.call("POST", "/containers/"+name+"/start", "", 204, nil)
		r.call("POST", "/containers/"+name+"/restart?t=0", "", 204, nil)
		if s := r.state(id); s.Status != "running" {
			t.Errorf("%s after the restart: %+v", name, s)
		}
		r.call("POST", "/containers/"+name+"/stop?t=0", "", 204, nil)
		r.call("GET", "/containers/"+name+"/json", "", 404, nil)
	}
}
