//! The data model of CQL and its merge rules, as pure code: no async, no I/O, no clock (time is an
//! argument).
//!
//! All layers use these types. A [`row::Row`] and a [`mutation::Mutation`] are contiguous buffers
//! that the commitlog, the internode transport, the memtable and the readers parse in place. Column
//! ids never change their meaning within a table, so bytes that were written under one schema
//! version are readable under any other.
//!
//! Reading order: types, token, key, schema, row, counter, mutation, fragment, merge, compact,
//! total, aggregate.

pub mod aggregate;
pub mod compact;
pub mod counter;
pub mod fragment;
mod hex;
pub mod id;
pub mod key;
pub mod merge;
pub mod mutation;
pub mod options;
pub mod range;
pub mod row;
pub mod schema;
pub mod time;
pub mod token;
pub mod total;
pub mod types;

pub use hex::hex;
pub use id::{ColumnId, CounterId, HostId, QueryId, SchemaVersion, TableId};
pub use schema::{Column, ColumnKind, TableSchema};
pub use token::Token;
pub use types::CqlType;
