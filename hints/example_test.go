package hints_test

import (
	"fmt"

	"github.com/kvcr-go/kvcr/hints"
)

func Example() {
	d, err := hints.NewDispatcher(hints.Config{})
	if err != nil {
		panic(err)
	}
	// A new action type: its name, its parser and its handler.
	err = hints.Register(d, hints.Type[string]{
		Name: "demo.greet", Version: "1.0",
		Parse: func(name *string, payload hints.Value, _ *hints.Limits) error {
			text, ok := payload.Field("name").Text()
			if !ok {
				return fmt.Errorf("name is %v, not text", payload.Field("name").Kind())
			}
			*name = text
			return nil
		},
		Handle: func(c *hints.Call, name *string) error {
			fmt.Println("hello", *name)
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	results, err := d.Submit("request-1", []byte(`{"protocol_version":"0.1","message_id":"m1","actions":[
		{"action_id":"a1","action_type":"demo.greet","action_version":"1.0","payload":{"name":"router"}},
		{"action_id":"a2","action_type":"demo.greet","action_version":"1.0","payload":{"name":7}},
		{"action_id":"a3","action_type":"demo.shout","action_version":"1.0","payload":{}}]}`))
	if err != nil {
		panic(err)
	}
	for _, r := range results {
		if r.Status == hints.Accepted {
			fmt.Println(r.ActionID, r.Status)
			continue
		}
		fmt.Printf("%s %v %q: %s\n", r.ActionID, r.Status, r.Reason, r.Detail)
	}
	// Output:
	// hello router
	// a1 ACCEPTED
	// a2 REJECTED "invalid_payload": name is a number, not text
	// a3 REJECTED "unsupported_action_type": no handler for "demo.shout"
}
