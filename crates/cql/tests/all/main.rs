//! Tests of CQL through a session, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes. `hot_path` and
//! `statement_memory` count allocations, so each of them is a program with its own allocator.

mod altered_types;
mod bound;
mod clock;
mod dropped_columns;
mod grammar;
mod groups;
mod language;
mod large_data;
mod large_requests;
mod late;
mod many_operations;
mod metadata;
mod nulls;
mod pages;
mod paging;
mod pauses;
mod prepared;
mod prepared_altered;
mod prepared_dropped;
mod rate_limits;
mod reference;
mod robust;
mod slow_log;
mod statistics;
mod support;
mod traces;
mod type_limits;
mod types_again;
