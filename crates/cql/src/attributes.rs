//! The USING clause: TIMESTAMP, TTL, TIMEOUT, with their limits.

use crate::error::Error;
use crate::syntax::ast;
use crate::term::{Env, Term, Val, Variables, prepare};
use model::CqlType;
use model::time::{MAX_TTL, MISSING_TIMESTAMP};
use model::types;
use rt::time::Duration;

/// A USING clause with typed terms.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Attributes {
    /// In microseconds.
    pub timestamp: Option<Box<Term>>,
    /// In seconds.
    pub ttl: Option<Box<Term>>,
    /// The timeout of the request.
    pub timeout: Option<Box<Term>>,
}

/// The most that a client's timestamp may be ahead of the clock, in microseconds.
const MAX_AHEAD: i64 = 3 * 24 * 3600 * 1_000_000;

impl Attributes {
    /// Types the terms of the clause.
    pub fn plan(attributes: &ast::Attributes, variables: &mut Variables<'_>) -> Result<Attributes, Error> {
        let mut of = |term: &Option<ast::Term>, name: &str, ty: CqlType| {
            term.as_ref().map(|term| prepare(variables, term, name, &ty).map(Box::new)).transpose()
        };
        if attributes.service_level.is_some() {
            return Err(Error::not_supported("USING SERVICE LEVEL"));
        }
        Ok(Attributes {
            timestamp: of(&attributes.timestamp, "[timestamp]", CqlType::Bigint)?,
            ttl: of(&attributes.ttl, "[ttl]", CqlType::Int)?,
            timeout: of(&attributes.timeout, "[timeout]", CqlType::Duration)?,
        })
    }

    /// The timestamp of the clause, in microseconds. `None` if the clause has none. If
    /// `restricted`, it is compared with the clock `now` (microseconds).
    pub fn timestamp(&self, env: Env<'_>, now: i64, restricted: bool) -> Result<Option<i64>, Error> {
        let Some(term) = &self.timestamp else { return Ok(None) };
        let value = match term.evaluate(env)? {
            Val::Unset => return Ok(None),
            Val::Null => return Err(Error::invalid("Invalid null value of timestamp")),
            value => value.as_slice().and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes),
        };
        let timestamp = value.ok_or_else(|| Error::invalid("Invalid timestamp value"))?;
        check_timestamp(timestamp)?;
        if restricted && timestamp.saturating_sub(now) > MAX_AHEAD {
            return Err(Error::invalid(
                "Cannot provide a timestamp more than 3 days into the future. If this was not intended, \
                 make sure the timestamp is in microseconds",
            ));
        }
        Ok(Some(timestamp))
    }

    /// The TTL of the clause, in seconds. `None` if the clause has none.
    pub fn ttl(&self, env: Env<'_>) -> Result<Option<i32>, Error> {
        let Some(term) = &self.ttl else { return Ok(None) };
        let value = match term.evaluate(env)? {
            Val::Unset => return Ok(None),
            Val::Null => return Err(Error::invalid("Invalid null value of TTL")),
            value => value.as_slice().and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes),
        };
        let ttl = value.ok_or_else(|| Error::invalid("Invalid TTL value"))?;
        if ttl < 0 {
            return Err(Error::invalid(format!("A TTL must be greater or equal to 0, but was {ttl}")));
        }
        if ttl > MAX_TTL {
            return Err(Error::invalid(format!("ttl is too large. requested ({ttl}) maximum ({MAX_TTL})")));
        }
        Ok(Some(ttl))
    }

    /// The timeout of the clause, or `default`.
    pub fn timeout(&self, env: Env<'_>, default: Duration) -> Result<Duration, Error> {
        let Some(term) = &self.timeout else { return Ok(default) };
        let bytes = match term.evaluate(env)? {
            Val::Unset | Val::Null => return Err(Error::invalid("Timeout value cannot be unset/null")),
            value => value.into_bytes().unwrap_or_default(),
        };
        let wrong = |error: types::ValueError| Error::invalid(error.to_string());
        let duration = types::Duration::from_bytes(&bytes).map_err(wrong)?;
        if duration.months != 0 || duration.days != 0 {
            return Err(Error::invalid("Timeout values cannot be expressed in days/months"));
        }
        if duration.nanos % 1_000_000 != 0 {
            return Err(Error::invalid("Timeout values cannot have granularity finer than milliseconds"));
        }
        let nanos = u64::try_from(duration.nanos).map_err(|_| Error::invalid("Timeout values must be non-negative"))?;
        Ok(Duration::from_nanos(nanos))
    }
}

/// Refuses the timestamp that represents a missing one.
pub fn check_timestamp(timestamp: i64) -> Result<(), Error> {
    match timestamp {
        MISSING_TIMESTAMP => Err(Error::invalid(format!("Out of bound timestamp {timestamp}"))),
        _ => Ok(()),
    }
}
