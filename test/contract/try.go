package contract

import (
	"github.com/forkd/forkd/client"
)

// tryAll calls the client's Try, and collects its results in the order of the children.
func tryAll(r *runner, of *Object, with arguments) (any, error) {
	rest := arguments{}
	for name, value := range with {
		if name != "commands" && name != "judge" {
			rest[name] = value
		}
	}
	var req client.TryRequest
	if err := rest.into(&req); err != nil {
		return nil, err
	}
	if judge := with["judge"]; judge != nil {
		req.Judge = argv(judge)
	}
	if req.N > 0 {
		req.Args = argv(with["commands"])
	} else {
		list, _ := with["commands"].([]any)
		for _, command := range list {
			req.Each = append(req.Each, argv(command))
		}
	}
	var results []any
	end, err := r.client.Try(r.ctx, id(of), req, func(s client.TryStarted) error {
		results = make([]any, len(s.Sandboxes))
		return nil
	}, func(one client.TryResult) error {
		fields, err := fieldsOf(one)
		if err != nil {
			return err
		}
		fields["command"] = fields["exec"]
		results[one.Index] = fields
		return nil
	})
	if err != nil {
		return nil, err
	}
	var winner any
	if end.Winner != nil {
		winner = results[*end.Winner]
	}
	return map[string]any{"results": results, "winner": winner, "sandboxes": sandboxObjects(end.Kept)}, nil
}

// argv returns the arguments of a command, which a scenario gives as a list or as a line for a shell.
func argv(command any) (args []string) {
	if line, ok := command.(string); ok {
		return client.Shell(line)
	}
	list, _ := command.([]any)
	for _, arg := range list {
		text, _ := arg.(string)
		args = append(args, text)
	}
	return args
}
