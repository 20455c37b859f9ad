// Runs a script on each of several objects as Argo CD does: in its Lua, with the libraries that it opens for scripts of
// argocd-cm (base, package and table, of os the clock alone; no string), within its second, the object as global `obj`.
//
// Standard input is {"script": "...", "objects": [...]}, standard output a list of what the script returned.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	gopherjson "layeh.com/gopher-json"
)

const longest = time.Second

type question struct {
	Script  string `json:"script"`
	Objects []any  `json:"objects"`
}

func main() {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fail(err)
	}
	answers := make([]json.RawMessage, 0, len(asked.Objects))
	for _, object := range asked.Objects {
		answer, err := run(asked.Script, object)
		if err != nil {
			fail(err)
		}
		answers = append(answers, answer)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fail(err)
	}
}

func run(script string, object any) (json.RawMessage, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
		{lua.OsLibName, openClock},
	} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return nil, err
		}
	}
	limited, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", gopherjson.DecodeValue(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	returned := state.Get(-1)
	if returned.Type() != lua.LTTable {
		return nil, fmt.Errorf("expect table output from Lua script, not %s", returned.Type())
	}
	return gopherjson.Encode(returned)
}

// openClock opens of the library os what scripts of Argo CD get.
func openClock(state *lua.LState) int {
	lua.OpenOs(state)
	whole := state.GetGlobal(lua.OsLibName).(*lua.LTable)
	clock := state.NewTable()
	for _, name := range []string{"time", "date"} {
		clock.RawSetString(name, whole.RawGetString(name))
	}
	state.SetGlobal(lua.OsLibName, clock)
	state.Push(clock)
	return 1
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
