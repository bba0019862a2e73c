//! Access by name to the `name = value` pairs of a WITH clause.

use crate::error::Error;
use crate::syntax::ast::{Literal, OptionValue, SchemaOption};
use cluster::tablets::strategy::rack_list;
use model::options::OptionMap;

/// The most bytes of the value of an option. For a map, its keys and values count together.
pub const MAX_OPTION_BYTES: usize = 64 << 10;

/// The options of one WITH clause, without duplicates.
pub struct Properties<'s> {
    options: &'s [SchemaOption],
}

impl<'s> Properties<'s> {
    /// Refuses a repeated option.
    pub fn new(options: &'s [SchemaOption]) -> Result<Self, Error> {
        for (at, option) in options.iter().enumerate() {
            if options[..at].iter().any(|before| before.name == option.name) {
                return Err(Error::Syntax(format!("Multiple definition for property '{}'", option.name)));
            }
            let bytes = bytes_of(&option.value);
            if bytes > MAX_OPTION_BYTES {
                return Err(Error::invalid(format!(
                    "The value of the option '{}' has {bytes} bytes; the maximum is {MAX_OPTION_BYTES} bytes",
                    option.name
                )));
            }
        }
        Ok(Properties { options })
    }

    /// Whether the option is present.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// The option's syntax.
    pub fn value(&self, name: &str) -> Option<&'s OptionValue> {
        self.options.iter().find(|option| option.name.as_str() == name).map(|option| &option.value)
    }

    /// The option as text.
    pub fn text(&self, name: &str) -> Result<Option<String>, Error> {
        match self.value(name) {
            None => Ok(None),
            Some(OptionValue::Literal(literal)) => Ok(Some(literal.text().into_owned())),
            Some(_) => {
                Err(Error::Syntax(format!("Invalid value for property '{name}'. It should be a string, not a map")))
            }
        }
    }

    /// The option as a map of text to text.
    pub fn map(&self, name: &str) -> Result<Option<OptionMap>, Error> {
        self.map_of(name, |_| None)
    }

    /// The option as a map from text to text. Lists of racks are converted to their stored form.
    pub fn map_with_racks(&self, name: &str) -> Result<Option<OptionMap>, Error> {
        self.map_of(name, |values| {
            let rack = |value: &OptionValue| match value {
                OptionValue::Literal(Literal::String(rack)) => Some(rack.clone()),
                _ => None,
            };
            values.iter().map(rack).collect::<Option<Vec<String>>>().map(|racks| rack_list(&racks))
        })
    }

    fn map_of(&self, name: &str, list: impl Fn(&[OptionValue]) -> Option<String>) -> Result<Option<OptionMap>, Error> {
        match self.value(name) {
            None => Ok(None),
            Some(OptionValue::Map(entries)) => simple_map(name, entries, list).map(Some),
            Some(_) => Err(Error::Syntax(format!("Invalid value for property '{name}'. It should be a map."))),
        }
    }

    /// The option as an integer.
    pub fn int(&self, name: &str) -> Result<Option<i32>, Error> {
        self.text(name)?.map(|text| int(name, &text)).transpose()
    }

    /// The option as a number.
    pub fn double(&self, name: &str) -> Result<Option<f64>, Error> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(Error::Syntax(format!("Invalid double value {text} for '{name}'"))),
        }
    }

    /// The option as a boolean.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, Error> {
        self.text(name)?.map(|text| boolean(name, &text)).transpose()
    }

    /// Refuses options with other names.
    pub fn check_known(&self, known: &[&str], obsolete: &[&str]) -> Result<(), Error> {
        for option in self.options {
            if !known.contains(&option.name.as_str()) && !obsolete.contains(&option.name.as_str()) {
                return Err(Error::Syntax(format!("Unknown property '{}'", option.name)));
            }
        }
        Ok(())
    }
}

/// How long the texts of a value are together.
fn bytes_of(value: &OptionValue) -> usize {
    match value {
        OptionValue::Literal(literal) => literal.text().len(),
        OptionValue::Map(entries) => entries.iter().map(|(key, value)| key.text().len() + bytes_of(value)).sum(),
        OptionValue::List(values) => values.iter().map(bytes_of).sum(),
    }
}

/// The integer value of an option.
pub fn int(name: &str, text: &str) -> Result<i32, Error> {
    text.trim().parse().map_err(|_| Error::Syntax(format!("Invalid integer value {text} for '{name}'")))
}

/// The boolean value of an option.
pub fn boolean(name: &str, text: &str) -> Result<bool, Error> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(Error::Syntax(format!("Invalid boolean value {text} for '{name}'"))),
    }
}

/// A map of texts. `list` converts a list to text if lists are allowed.
fn simple_map(
    name: &str,
    entries: &[(Literal, OptionValue)],
    list: impl Fn(&[OptionValue]) -> Option<String>,
) -> Result<OptionMap, Error> {
    let mut map = OptionMap::new();
    for (key, value) in entries {
        let value = match value {
            OptionValue::Literal(value) => Some(value.text().into_owned()),
            OptionValue::List(values) => list(values),
            OptionValue::Map(_) => None,
        };
        let Some(value) = value else {
            return Err(Error::Syntax(format!("Invalid value for property '{name}'. It should be a map of strings.")));
        };
        if map.insert(key.text().into_owned(), value).is_some() {
            return Err(Error::Syntax(format!("Multiple definition for property '{}' of '{name}'", key.text())));
        }
    }
    Ok(map)
}
