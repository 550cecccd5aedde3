package ucx

import "time"

// testPatience bounds every wait of a test that must not be reached.
const testPatience = 10 * time.Second
