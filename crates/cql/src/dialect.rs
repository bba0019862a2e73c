//! How statements are understood where ScyllaDB and Cassandra differ and the operator chooses.

/// Part of what a plan depends on: a statement that is prepared under another dialect is another statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dialect {
    /// Whether markers of one name are one variable, as in ScyllaDB; otherwise each is its own, as in Cassandra.
    pub names_are_one: bool,
    /// Whether the variable of `c IN ?` is called `IN(c)`, as in ScyllaDB, or `in(c)`, as in Cassandra.
    pub in_is_upper: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Dialect { names_are_one: true, in_is_upper: true }
    }
}

impl Dialect {
    /// What tells its statements' ids apart from those of others; nothing for the default one.
    pub fn mark(self) -> Option<u8> {
        (self != Dialect::default()).then_some(u8::from(self.names_are_one) | u8::from(self.in_is_upper) << 1)
    }

    /// `IN` or `NOT IN` in the names of variables.
    pub fn in_operator(self, negated: bool) -> &'static str {
        match (self.in_is_upper, negated) {
            (true, false) => "IN",
            (true, true) => "NOT IN",
            (false, false) => "in",
            (false, true) => "not in",
        }
    }
}
