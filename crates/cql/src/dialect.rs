//! Settings for statements that ScyllaDB and Cassandra interpret differently.

/// The interpretation chosen by the operator. A plan depends on it: the same text under another
/// dialect is another prepared statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dialect {
    /// Whether markers of the same name are one variable, as in ScyllaDB. Otherwise each marker is
    /// its own variable, as in Cassandra.
    pub names_are_one: bool,
    /// Whether the variable of `c IN ?` is named `IN(c)`, as in ScyllaDB, or `in(c)`, as in
    /// Cassandra.
    pub in_is_upper: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Dialect { names_are_one: true, in_is_upper: true }
    }
}

impl Dialect {
    /// The byte that distinguishes the ids of this dialect's statements. `None` for the default
    /// dialect.
    pub fn id_suffix(self) -> Option<u8> {
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
