//! A value of a scenario that knows where it stands.
//!
//! Decides the words of the errors for what is missing or of the wrong type. `null` counts as
//! absent everywhere.

use serde_json::{Value, value::RawValue};

use super::ReplayError;

/// A value and the way to it.
#[derive(Clone)]
pub(super) struct Field<'a> {
    scenario: &'a Value,
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    /// A scenario as a whole.
    pub fn of(scenario: &'a Value) -> Self {
        Self {
            scenario,
            path: String::new(),
            value: scenario,
        }
    }

    /// The value itself.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// The member `name`, absent or not.
    pub fn get(&self, name: &str) -> Self {
        static ABSENT: Value = Value::Null;
        let dot = if self.path.is_empty() { "" } else { "." };
        Self {
            scenario: self.scenario,
            path: format!("{}{dot}{name}", self.path),
            value: self.value.get(name).unwrap_or(&ABSENT),
        }
    }

    /// The member `name`, if it is there.
    pub fn find(&self, name: &str) -> Option<Self> {
        Some(self.get(name)).filter(|field| !field.value.is_null())
    }

    /// The members of a list.
    pub fn list(&self) -> Result<impl Iterator<Item = Field<'a>> + use<'a>, ReplayError> {
        let members = self
            .value
            .as_array()
            .ok_or_else(|| self.wrong("must be a list"))?;
        let (scenario, path) = (self.scenario, self.path.clone());
        let members = members.iter().enumerate();
        Ok(members.map(move |(at, value)| Field {
            scenario,
            path: format!("{path}[{at}]"),
            value,
        }))
    }

    pub fn text(&self) -> Result<&'a str, ReplayError> {
        self.value
            .as_str()
            .ok_or_else(|| self.wrong("must be a text"))
    }

    pub fn truth(&self) -> Result<bool, ReplayError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wrong("must be true or false"))
    }

    pub fn number(&self) -> Result<f64, ReplayError> {
        self.value
            .as_f64()
            .ok_or_else(|| self.wrong("must be a number"))
    }

    pub fn whole<N: TryFrom<u64>>(&self) -> Result<N, ReplayError> {
        let number = self
            .value
            .as_u64()
            .and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| self.wrong("must be a whole number from 0 that is not too large"))
    }

    /// The value as JSON text.
    pub fn raw(&self) -> Result<Box<RawValue>, ReplayError> {
        Ok(serde_json::value::to_raw_value(self.value)?)
    }

    /// An error about this value.
    pub fn wrong(&self, problem: &str) -> ReplayError {
        let name = self.scenario.get("name").and_then(Value::as_str);
        ReplayError::Field {
            scenario: name.map_or_else(|| "without a name".to_owned(), |name| format!("`{name}`")),
            field: if self.path.is_empty() {
                "scenario".to_owned()
            } else {
                self.path.clone()
            },
            problem: problem.to_owned(),
        }
    }
}
