package peer

func childMain(role string) {}
