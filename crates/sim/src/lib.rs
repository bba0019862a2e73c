//! A whole node on a simulated machine, faults and checkers.
