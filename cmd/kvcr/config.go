package main

import (
	"encoding/json"
	"text/tabwriter"

	"fmt"
)

type configCmd struct {
	engineFlags
	nodeFlags
	peerFlags
	routerFlags
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *configCmd) Run(e *env) error {
	vs, _, err := c.resolve(e, &c.nodeFlags, &c.peerFlags, &c.routerFlags)
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(vs)
	}
	w := tabwriter.NewWriter(e.stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tSOURCE\tMEANING")
	for i, v := range vs {
		shown := v.Value
		if shown == "" {
			shown = `""`
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Name, shown, v.Source, settings[i].help)
	}
	return w.Flush()
}
