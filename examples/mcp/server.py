"""A calculator as an MCP server over stdio.  examples/setup.sh mcp  installs what it needs."""

import ast
import operator

from mcp.server import MCPServer

server = MCPServer("calculator")

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.USub: operator.neg, ast.UAdd: operator.pos}


def value(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.operand))
    raise ValueError("an expression has numbers, + - * / and parentheses")


@server.tool()
def calculate(expression: str) -> str:
    """Calculates an expression, for instance (1 + 2) * 3."""
    if len(expression) > 200:
        return "error: the expression is too long"
    try:
        return str(value(ast.parse(expression.strip(), mode="eval").body))
    except (ArithmeticError, RecursionError, SyntaxError, ValueError) as error:
        return f"error: {error}"


if __name__ == "__main__":
    server.run(transport="stdio")
