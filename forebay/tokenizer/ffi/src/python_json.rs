//! JSON as Python's json.dumps(ensure_ascii=False) writes it, so that a chat template's `tojson`
//! gives the very text that a model was trained on: ", " and ": " as separators, floats as repr()
//! prints them.

use serde_json::Value;

/// One level of nesting per `indent` spaces, or everything in one line.
#[derive(Clone, Copy)]
pub struct Style {
    pub indent: Option<usize>,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

pub fn to_string(value: &Value, style: Style) -> String {
    let mut out = String::new();
    write(value, style, 0, &mut out);
    out
}

fn write(value: &Value, style: Style, depth: usize, out: &mut String) {
    match value {
        Value::Array(items) => {
            let write_item = |item: &&Value, out: &mut String| write(item, style, depth + 1, out);
            write_block(
                '[',
                ']',
                items.iter().collect(),
                style,
                depth,
                out,
                write_item,
            );
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            let write_entry = |(key, item): &(&String, &Value), out: &mut String| {
                write_str(key, style, out);
                out.push_str(": ");
                write(item, style, depth + 1, out);
            };
            write_block('{', '}', entries, style, depth, out, write_entry);
        }
        Value::String(text) => write_str(text, style, out),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&float_repr(float)),
            _ => out.push_str(&number.to_string()),
        },
        Value::Bool(_) | Value::Null => out.push_str(&value.to_string()),
    }
}

fn write_block<T>(
    open: char,
    close: char,
    items: Vec<T>,
    style: Style,
    depth: usize,
    out: &mut String,
    write_item: impl Fn(&T, &mut String),
) {
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(if style.indent.is_some() { "," } else { ", " });
        }
        new_line(style, depth + 1, out);
        write_item(item, out);
    }
    if !items.is_empty() {
        new_line(style, depth, out);
    }
    out.push(close);
}

fn new_line(style: Style, depth: usize, out: &mut String) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

fn write_str(text: &str, style: Style, out: &mut String) {
    let quoted = Value::from(text).to_string();
    if !style.ensure_ascii {
        // Python escapes only what JSON demands, and so does serde_json.
        return out.push_str(&quoted);
    }
    for c in quoted.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0u16; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// Python's repr of a finite float: shortest digits, an exponent of two digits or more outside
/// 1e-4..1e16.
fn float_repr(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{value:?}")
}
