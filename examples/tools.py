"""Runs model-written code with your functions as tools: declarations for the model, its code, the result."""

import asyncio
from dataclasses import dataclass

import hutch


@dataclass
class Product:
    """A product for sale."""

    name: str
    price: float
    stock: int


PRODUCTS = [Product("lamp", 29.0, 3), Product("desk", 180.0, 0), Product("chair", 75.5, 8)]


async def search(text: str = "", max_price: float | None = None) -> list[Product]:
    """Find products.

    Args:
        text: Part of the name.
        max_price: The highest price.
    """
    return [
        product
        for product in PRODUCTS
        if text in product.name and (max_price is None or product.price <= max_price)
    ]


def reserve(name: str, count: int = 1) -> int:
    """Reserve products and return how many are left."""
    product = next(product for product in PRODUCTS if product.name == name)
    if product.stock < count:
        raise hutch.ToolError(f"only {product.stock} of {name} left")
    product.stock -= count
    return product.stock


# Code that a model could write. TypeScript and parallel calls are supported.
CODE = """
const cheap = (await shop.search({ max_price: 100 })).filter((product) => product.stock > 0);
const left: number[] = await Promise.all(cheap.map(({ name }) => shop.reserve({ name, count: 2 })));
console.log("reserved", cheap.map((product) => product.name));
try {
  await shop.reserve({ name: "desk" });
} catch (error) {
  console.log(error.code, error.message);
}
return { left, total: cheap.reduce((sum, product) => sum + 2 * product.price, 0) };
"""


async def main() -> None:
    shop = hutch.Provider.of(search, reserve, name="shop")
    print(shop.declarations())
    async with hutch.Hutch() as h:
        r = await h.run(CODE, tools=shop)
    print(*r.logs, sep="\n")
    print(r.result if r.ok else r.error)


if __name__ == "__main__":
    asyncio.run(main())
