// Package oracle answers what package plan answers, slowly and from its own reading
// of the rules, and compares the two over inventories made at random.
//
// It keeps sets and counts: no walk is shared, no interval built, nothing indexed. It
// shares with package plan the types of a question and of its answer, nothing else.
//
// The rules are those of the router contract, section 4; numbers in comments are its
// rules. Where the contract leaves something open, the comment says "chosen".
package oracle
