"""LangChain by the HTTP door: its address is in OPENAI_BASE_URL."""

from __future__ import annotations

from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="demo", api_key="none", max_tokens=48, temperature=0.8)
print(model.invoke([("user", "Good morrow. How fares my lady?")]).content)
for part in model.stream([("system", "A garden by night."), ("user", "Who are you?")]):
    print(part.content, end="", flush=True)
print()
