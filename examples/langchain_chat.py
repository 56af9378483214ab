"""LangChain against `dflash-cpp serve`: it is a server with OpenAI's API, nothing else is needed.

dflash-cpp serve smollm2 --port 8080 &
pip install langchain-openai
python examples/langchain_chat.py http://127.0.0.1:8080/v1
"""

from __future__ import annotations

import sys

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
model = ChatOpenAI(base_url=url, api_key="none", model="any", temperature=0, max_tokens=64)
prompt = ChatPromptTemplate.from_messages([("system", "You are brief."), ("user", "Name three {things}.")])
for chunk in (prompt | model).stream({"things": "rivers in Europe"}):
    print(chunk.content, end="", flush=True)
print()
