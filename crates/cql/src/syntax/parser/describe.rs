//! DESCRIBE.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{Describe, DescribeTarget};

impl Parser<'_> {
    pub(super) fn describe(&mut self) -> Result<Describe> {
        self.advance();
        let target = self.describe_target()?;
        let with_internals = self.eat_word(K::With);
        let mut with_passwords = false;
        if with_internals {
            self.expect_words(&[K::Internals])?;
            with_passwords = self.eat_word(K::And);
            if with_passwords {
                self.expect_words(&[K::Passwords])?;
            }
        }
        Ok(Describe { target, with_internals, with_passwords })
    }

    fn describe_target(&mut self) -> Result<DescribeTarget> {
        // A word that denotes a kind of object is an ordinary name if a point follows, or if the
        // name of the object is missing.
        let ended = matches!(self.peek_at(1), Kind::End | Kind::Mark(M::Semicolon) | Kind::Word(K::With, _));
        let Kind::Word(keyword, _) = self.peek() else { return self.describe_any() };
        if self.is_mark(1, M::Dot) {
            return self.describe_any();
        }
        Ok(match keyword {
            K::Cluster if ended => self.described(DescribeTarget::Cluster),
            K::Keyspaces if ended => self.described(DescribeTarget::Keyspaces),
            K::Tables if ended => self.described(DescribeTarget::Tables),
            K::Types if ended => self.described(DescribeTarget::Types),
            K::Functions if ended => self.described(DescribeTarget::Functions),
            K::Aggregates if ended => self.described(DescribeTarget::Aggregates),
            K::Schema if ended => self.described(DescribeTarget::Schema { full: false }),
            K::Full => {
                self.advance();
                self.expect_words(&[K::Schema])?;
                DescribeTarget::Schema { full: true }
            }
            K::Only if !ended => {
                self.advance();
                if !self.eat_word(K::Schema) {
                    self.expect_words(&[K::Keyspace])?;
                }
                DescribeTarget::Keyspace { only: true, name: self.described_keyspace()? }
            }
            K::Keyspace | K::Schema => {
                self.advance();
                DescribeTarget::Keyspace { only: false, name: self.described_keyspace()? }
            }
            K::Table => {
                self.advance();
                DescribeTarget::Table(self.table_name()?)
            }
            K::Index => {
                self.advance();
                DescribeTarget::Index(self.qualified("index")?)
            }
            K::Materialized => {
                self.advance();
                self.expect_words(&[K::View])?;
                DescribeTarget::View(self.table_name()?)
            }
            K::Type if !ended => {
                self.advance();
                DescribeTarget::Type(self.user_type_name()?)
            }
            K::Function if !ended => {
                self.advance();
                DescribeTarget::Function(self.function_name()?)
            }
            K::Aggregate if !ended => {
                self.advance();
                DescribeTarget::Aggregate(self.function_name()?)
            }
            _ => return self.describe_any(),
        })
    }

    fn described(&mut self, target: DescribeTarget) -> DescribeTarget {
        self.advance();
        target
    }

    fn described_keyspace(&mut self) -> Result<Option<crate::syntax::ast::Name>> {
        if self.is_name(0) { Ok(Some(self.take_name())) } else { Ok(None) }
    }

    fn describe_any(&mut self) -> Result<DescribeTarget> {
        self.qualified("table").map(DescribeTarget::Any)
    }
}
