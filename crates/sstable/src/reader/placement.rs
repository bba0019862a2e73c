//! Checks that a reader of several partitions finds those of its sstable.
//!
//! A Data.db that belongs to another sstable may be intact by itself. Without these checks a scan
//! would miss partitions, and a compaction would write partitions of other tablets.

use super::{Reader, State};
use crate::error::Error;
use crate::index::IndexEntry;
use model::token::{self, Token};

impl Reader {
    /// Why a key cannot be the one of the partition at the position of the stream. `is_behind`:
    /// whether the key is behind the range of the reader.
    pub(super) fn misplaced(&self, token: Token, key: &[u8], is_behind: bool) -> Option<&'static str> {
        let (position, found) = (self.stream.position(), (token, key));
        let is_wrong = |entry: &Option<IndexEntry>| {
            entry.as_ref().is_some_and(|entry| entry.position == position && entry.key[..] != *key)
        };
        if is_wrong(&self.entry) || is_wrong(&self.behind) {
            return Some("the index has another partition here");
        }
        if position == 0 && *key != self.table.first_key().key[..] {
            return Some("the summary has another first partition");
        }
        if self.any && (self.token, &self.key[..]) >= found {
            return Some("the partitions are out of order");
        }
        let last = self.table.last_key();
        if found > (last.token, &last.key[..]) {
            return Some("a partition follows the last one in the summary");
        }
        let filter = self.table.filter.as_ref().filter(|_| self.checks_order);
        if filter.is_some_and(|filter| !filter.may_contain(token::hash128(key))) {
            return Some("the filter excludes a key");
        }
        let is_behind_in_index = self.behind.as_ref().is_some_and(|behind| behind.position <= position);
        (is_behind != is_behind_in_index).then_some("the index has other partitions")
    }

    /// No partition follows, by the end of the content or of the index.
    pub(super) fn end_of_content(&mut self) -> Result<(), Error> {
        if self.single.is_none() {
            if self.behind.is_some() || !self.any || self.key[..] != self.table.last_key().key[..] {
                return Err(self.stream.corrupt("the last partition in the summary is missing"));
            }
            self.stream.check_sum()?;
        }
        self.state = State::Done;
        Ok(())
    }
}
