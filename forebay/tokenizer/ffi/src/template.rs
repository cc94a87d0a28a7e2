//! Chat templates as transformers renders them: Jinja with trim_blocks and lstrip_blocks, Python's
//! string and dict methods, raise_exception, strftime_now and Python's tojson.

use chrono::format::{Item, StrftimeItems};
use chrono::DateTime;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::python_json::{self, Style};

// Bounds the time and the memory (about 64 bytes a unit) that a hostile template can take. A
// template spends some tens of units a message.
const RENDER_FUEL: u64 = 4_000_000;
const INDENT_MAX: usize = 16;
// Where Render hides the time from the template's own variables.
const NOW_KEY: &str = "__forebay_now_unix_s";

pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    pub fn parse(source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| format!("{e:#}"))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(RENDER_FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned("chat", without_generation_tags(source))
            .map_err(|e| format!("{e:#}"))?;
        Ok(Self { environment })
    }

    /// `context` is a JSON object with the template's variables. `now_unix_s` is what strftime_now
    /// shows.
    pub fn render(&self, context: &str, now_unix_s: i64) -> Result<String, String> {
        let mut context: serde_json::Value =
            serde_json::from_str(context).map_err(|e| format!("the context is not JSON: {e}"))?;
        let variables = context
            .as_object_mut()
            .ok_or("the context is not a JSON object")?;
        variables.insert(NOW_KEY.to_string(), now_unix_s.into());
        let template = self
            .environment
            .get_template("chat")
            .map_err(|e| format!("{e:#}"))?;
        template
            .render(Value::from(Serde(&context)))
            .map_err(|e| format!("{e:#}"))
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

// UTC, not the local zone: machines in different zones must build the same prompt.
fn strftime_now(state: &State, format: String) -> Result<String, Error> {
    let invalid = |reason: &str| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {reason}"),
        )
    };
    let items: Vec<Item> = StrftimeItems::new(&format).collect();
    if items.iter().any(|item| matches!(item, Item::Error)) {
        return Err(invalid(&format!("{format:?} is not a time format")));
    }
    let seconds = state
        .lookup(NOW_KEY)
        .and_then(|now| now.as_i64())
        .unwrap_or(0);
    let now =
        DateTime::from_timestamp(seconds, 0).ok_or_else(|| invalid("the time is out of range"))?;
    Ok(now.format_with_items(items.iter()).to_string())
}

fn to_json(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let invalid =
        |reason: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"));
    let style = Style {
        indent: kwargs.get::<Option<usize>>("indent")?,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    if style.indent.is_some_and(|indent| indent > INDENT_MAX) {
        return Err(invalid(format!("indent is above {INDENT_MAX}")));
    }
    let json = serde_json::to_value(&value).map_err(|e| invalid(e.to_string()))?;
    Ok(Value::from_safe_string(python_json::to_string(
        &json, style,
    )))
}

/// {% generation %} ... {% endgeneration %} mark the assistant's part for transformers and render
/// as nothing: a comment in their place keeps the whitespace control.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let name = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        if name == "generation" || name == "endgeneration" {
            let open = if inner.starts_with('-') { "{#-" } else { "{#" };
            let close = if inner.ends_with('-') { "-#}" } else { "#}" };
            out.push_str(open);
            out.push(' ');
            out.push_str(close);
        } else {
            out.push_str(&tag[..end + 2]);
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}
