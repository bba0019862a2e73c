//! The node's configuration: `messina.yaml` with scylla.yaml's key names, mirrored by command line options.
//!
//! [`keys`] is the one table of all keys: fields, defaults and documentation come from it, and so
//! do the command line and `docs/configuration.md` ([`reference`]). [`setting`], [`encryption`],
//! [`internode`], [`guardrail`] and [`seeds`] read values, [`file`] reads the file, [`legacy`]
//! lists the keys of other products that are understood and have no effect, [`source`] remembers
//! who set what, [`live`] is what can be changed while the node runs, [`fixed`] what is only shown.
//! A later source wins: default, file, command line. Invariant: a wrong value is an error that
//! names key and value; an unknown key is a warning. Exceptions are keys that look like one of the
//! section Security, and unknown options in a map ([`map`]): without them a node would be less safe
//! than configured.

pub mod encryption;
pub mod file;
mod fixed;
pub mod guardrail;
pub mod handoff;
pub mod hosts;
pub mod internode;
pub mod keys;
pub mod legacy;
pub mod live;
pub(crate) mod map;
pub mod reference;
pub mod seeds;
pub mod setting;
pub mod source;

pub use file::{Loaded, load};
pub use keys::{Config, KEYS, Key};
pub use setting::{BadValue, CommitlogSync, CpuSet, LogFormat, Raw};
pub use source::Source;

use std::fmt;
use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not YAML with keys at its top.
    NotYaml {
        /// The file.
        path: PathBuf,
        /// Why, with the place.
        why: String,
    },
    /// A value is wrong.
    Wrong {
        /// Where the value stands: the file, or the command line.
        place: String,
        /// The key.
        key: String,
        /// What is wrong.
        why: BadValue,
    },
    /// Values do not fit together.
    Conflict(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Unreadable { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            ConfigError::NotYaml { path, why } => write!(f, "{}: {why}", path.display()),
            ConfigError::Wrong { place, key, why } => write!(f, "{place}: {key}: {why}"),
            ConfigError::Conflict(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ConfigError {}
