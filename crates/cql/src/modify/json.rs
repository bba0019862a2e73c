//! INSERT JSON: the values of a row in one text.
//!
//! The columns are planned as variables that follow the statement's variables. Each request parses
//! its text once and binds the variables. So the rest of the code handles an INSERT of all columns.

use crate::api::{BoundValue, ColumnSpec};
use crate::checked::CheckedValue;
use crate::error::Error;
use crate::request::Request;
use crate::term::large::LARGE_VALUE;
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use model::CqlType;
use model::types::{AbsentFields, Json, Places, fold_name};
use std::rc::Rc;
use std::sync::Arc;

/// The most characters of a text in an error.
const SHOWN: usize = 1000;

/// The source of the values of an INSERT JSON.
#[derive(Clone, PartialEq, Debug)]
pub struct JsonInsert {
    /// The text.
    pub text: Term,
    /// All columns of the table, the primary key first.
    pub specs: Rc<[ColumnSpec]>,
    /// The same columns, as the text is read.
    pub columns: Arc<JsonColumns>,
}

/// The columns of an INSERT JSON.
#[derive(Clone, PartialEq, Debug)]
pub struct JsonColumns {
    /// Whether columns that are missing in the text stay unchanged instead of being deleted.
    pub default_unset: bool,
    /// Their names and types.
    pub columns: Box<[(String, CqlType)]>,
    /// The number of primary key columns.
    pub key_columns: usize,
}

/// The values of a request, followed by the values of its JSON text.
pub struct JsonValues {
    values: Vec<BoundValue>,
    variables: Vec<ColumnSpec>,
}

impl JsonValues {
    /// The environment in which the statement's terms are evaluated.
    pub fn env(&self) -> Env<'_> {
        Env { values: &self.values, variables: &self.variables }
    }
}

impl JsonInsert {
    /// Parses the text. A long text is parsed off the shard.
    pub async fn bind(&self, env: Env<'_>, request: &Request<'_>) -> Result<JsonValues, Error> {
        let text = match self.text.evaluate(env)? {
            Val::Null => return Err(Error::invalid("Got null for INSERT JSON values")),
            Val::Unset => return Err(Error::invalid("Got unset for INSERT JSON values")),
            value => value.into_bytes().unwrap_or_default(),
        };
        let bound = if text.len() > LARGE_VALUE {
            let _turn = request.turn_of_large().await?;
            let columns = self.columns.clone();
            rt::offload::run(move || columns.values(&text)).await
        } else {
            self.columns.values(&text)
        };
        let values = env.values.iter().cloned().chain(bound.map_err(Error::invalid)?).collect();
        let variables = env.variables.iter().chain(self.specs.iter()).cloned().collect();
        Ok(JsonValues { values, variables })
    }
}

/// The values of a JSON text are valid and canonical. A short text can have large ones.
fn bound_value(bytes: Bytes) -> BoundValue {
    match bytes.len() > LARGE_VALUE {
        true => BoundValue::Checked(Box::new(CheckedValue::of(bytes))),
        false => BoundValue::Value(bytes),
    }
}

impl JsonColumns {
    /// The values of a text, by column, or the error for the client.
    fn values(&self, text: &[u8]) -> Result<Vec<BoundValue>, String> {
        let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
        let undecodable = |why: String| {
            // A text may be megabytes long.
            let (shown, more) = match text.char_indices().nth(SHOWN) {
                Some((end, _)) => (&text[..end], "..."),
                None => (text, ""),
            };
            format!("Could not decode JSON string as a map: {why}. (String was: {shown}{more})")
        };
        let json = Json::parse(text).map_err(|error| undecodable(error.to_string()))?;
        let Json::Object(members) = json else { return Err(undecodable("it is no object".to_owned())) };
        let left_out = |i: usize| {
            if self.default_unset && i >= self.key_columns { BoundValue::Unset } else { BoundValue::Null }
        };
        let mut bound: Vec<BoundValue> = (0..self.columns.len()).map(left_out).collect();
        let folded: Vec<String> = members.iter().map(|(name, _)| fold_name(name)).collect();
        let columns = self.columns.iter().map(|(column, _)| &column[..]);
        let places = Places::of(folded.iter().map(|name| &name[..]), columns);
        let mut absent = AbsentFields::default();
        for ((name, member), folded) in members.iter().zip(&folded) {
            let place = places.get(&&folded[..]);
            let place = place.ok_or_else(|| format!("JSON values map contains unrecognized column: {name}"))?;
            let ty = &self.columns[place].1;
            let value = member.encode(ty, &mut absent);
            let value = value.map_err(|error| format!("Error decoding JSON value for {folded}: {error}"))?;
            bound[place] = value.map_or(BoundValue::Null, |bytes| bound_value(bytes.into()));
        }
        Ok(bound)
    }
}
