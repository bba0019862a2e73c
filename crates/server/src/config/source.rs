//! Where settings come from.

use std::collections::BTreeMap;

/// Where a setting was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In the file.
    File,
    /// On the command line.
    CommandLine,
    /// While the node runs, in `system.config`.
    Cql,
}

impl Source {
    /// The name in `system.config`, which is ScyllaDB's.
    pub fn name(self) -> &'static str {
        match self {
            Source::File => "yaml",
            Source::CommandLine => "cli",
            Source::Cql => "cql",
        }
    }
}

/// The name for a setting that was not set.
pub const DEFAULT: &str = "default";

/// The settings that were set, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sources(BTreeMap<&'static str, Source>);

impl Sources {
    /// Records where a setting was set.
    pub fn set(&mut self, name: &'static str, source: Source) {
        self.0.insert(name, source);
    }

    /// Records that a setting has its default again.
    pub fn reset(&mut self, name: &'static str) {
        self.0.remove(name);
    }

    /// Where a setting was set, if it was.
    pub fn of(&self, name: &str) -> Option<Source> {
        self.0.get(name).copied()
    }
}
